"""PyTorch as a peer, for `weft bench` and `weft verify` on .pt2 files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.hooks import EngineKind

Run = Callable[[Mapping[str, Any]], list[Any]]


def version() -> str | None:
    """The version of PyTorch that is installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("torch")
    except PackageNotFoundError:
        return None


def open_torch(path: str, threads: int) -> Run:
    """PyTorch's eager mode."""
    from pathlib import Path

    import torch

    from weft_torch.archive import read_program

    torch.set_num_threads(threads)
    program = read_program(Path(path))
    module, names = program.module(), program.graph_signature.user_inputs
    spec = program.call_spec.in_spec

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        with torch.no_grad():
            args, kwargs = torch.utils._pytree.tree_unflatten([_given(inputs, n) for n in names], spec)
            results = torch.utils._pytree.tree_leaves(module(*args, **kwargs))
        return [_array(r) for r in results if r is not None]

    return run


def _given(inputs: Mapping[str, Any], name: Any) -> Any:
    import torch

    return torch.from_numpy(inputs[name]) if isinstance(name, str) else name


def _array(result: Any) -> Any:
    import numpy as np

    from weft_torch.tensors import array_of

    return array_of(result) if hasattr(result, "dtype") else np.asarray(result)


def torch_values(path: str) -> Callable[[Sequence[str], Mapping[str, Any]], Mapping[str, Any]]:
    """Values between a program's nodes, node by node in eager mode."""
    from pathlib import Path

    import torch

    from weft_torch.archive import read_program
    from weft_torch.importer import prepared

    program = prepared(read_program(Path(path)))

    def ask(names: Sequence[str], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted, found = set(names), {}

        class Watch(torch.fx.Interpreter):  # type: ignore[misc]  # PyTorch's classes are not looked at
            def run_node(self, n: torch.fx.Node) -> Any:
                result = super().run_node(n)
                if n.name in wanted and isinstance(result, torch.Tensor):
                    found[n.name] = _array(result)
                return result

        values = []
        for spec in program.graph_signature.input_specs:
            target = spec.target
            if target is not None:
                held = program.state_dict.get(target)
                values.append(program.constants[target] if held is None else held)
            else:
                values.append(
                    _given(inputs, spec.arg.name) if spec.arg.name in inputs else getattr(spec.arg, "value", None)
                )
        with torch.no_grad():
            Watch(program.graph_module).run(*values)
        return found

    return ask


ENGINES = [EngineKind("torch", version, open_torch, torch_values, ("torch",))]
