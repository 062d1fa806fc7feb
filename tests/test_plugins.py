"""Plugins installed as real distributions: what loads, in which order, what is kept out and how that reads."""

from __future__ import annotations

import ast
import functools
import importlib.metadata as metadata
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.mixed import board

from weft.errors import FrontendError, PluginError, PluginWarning, ScheduleWarning, TargetError, WeftError
from weft.graph.evaluate import evaluate
from weft.hooks import Frontend, Specifications, StageReport, hookimpl
from weft.loading import find_frontend, load
from weft.loop.nodes import Program
from weft.machine import Machine
from weft.passes.place import Refuse, Take
from weft.plugins import PluginHost, device_kinds, engine_kinds, host, operator_claims, operator_classes
from weft.resolve import resolve_target, resolve_targets, target_kinds
from weft.scheduling.rule import Decline, Offer, Rule
from weft.scheduling.schedule import Schedule

ROOT = Path(__file__).parents[1]
UNDECIDED = "nothing says which of them is meant, and the order of plugins decides nothing"
HOOKS = [n for n in vars(Specifications) if not n.startswith("_")]

GOOD = """
from weft.hooks import EngineKind, hookimpl

@hookimpl
def engines():
    return [EngineKind("{name}-engine", lambda: "1", lambda path, threads: None)]
"""
TARGET = """
import dataclasses
from weft.hooks import hookimpl
from weft.machine import Machine
from weft.target import TargetKind

@dataclasses.dataclass(frozen=True)
class Options:
    tiles: int = 4

class Npu(TargetKind):
    name = "npu"
    options = Options
    def machine(self, target): return Machine("npu", 128, 8)
    def codegen(self, target): raise NotImplementedError
    def device(self, target): return "npu"
    def fingerprint(self, target): return "1"

@hookimpl
def targets():
    {before}
    return [Npu()]
"""


class Site:
    """A folder on sys.path into which distributions are written as an installer would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, source: str, requires: str = "weft>=0.1,<0.2", plugin: str | None = None) -> None:
        module = name.replace("-", "_")
        (self.folder / f"{module}.py").write_text(source.replace("{name}", name))
        info = self.folder / f"{module}-1.5.dist-info"
        info.mkdir()
        line = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n{line}")
        (info / "entry_points.txt").write_text(f"[weft.plugins]\n{plugin or name} = {module}\n")

    def host(self, version: str = "0.1.0") -> PluginHost:
        found = metadata.entry_points(group="weft.plugins")
        return PluginHost(
            [e for e in found if e.dist is not None and Path(str(e.dist.locate_file(""))) == self.folder], version
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    host()  # the process's own is made now: what is installed here is not for it
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def failure(host: PluginHost) -> str:
    (plugin,) = host.quarantined()
    assert plugin.failure is not None
    return plugin.failure


def test_a_good_plugin_is_found_by_its_distribution(site: Site) -> None:
    site.install("good", GOOD)
    host = site.host()
    (plugin,) = host.plugins
    assert (plugin.name, plugin.distribution, plugin.version, plugin.requires) == ("good", "good", "1.5", "<0.2,>=0.1")
    assert plugin.healthy
    (item,) = host.items("engines")
    assert (item.plugin, item.value.name) == (plugin, "good-engine")


def test_plugins_are_called_sorted_by_name_however_they_were_installed(site: Site) -> None:
    for name in ("middle", "zebra", "ape"):
        site.install(name, GOOD)
    assert [p.name for p in site.host().plugins] == ["ape", "middle", "zebra"]
    assert [c.value.name for c in site.host().items("engines")] == ["ape-engine", "middle-engine", "zebra-engine"]


def test_a_misspelt_hook_is_named_with_the_nearest_and_leaves_others_in_use(site: Site) -> None:
    site.install("good", GOOD)
    site.install("misspelt", "from weft.hooks import hookimpl\n@hookimpl\ndef fontends():\n    return []\n")
    host = site.host()
    assert failure(host) == "PluginError: unknown hook 'fontends', did you mean 'frontends'?"
    assert [c.plugin.name for c in host.items("engines")] == ["good"]


def test_an_argument_that_no_hook_has_quarantines(site: Site) -> None:
    site.install(
        "greedy", "from weft.hooks import hookimpl\n@hookimpl\ndef schedules(target, weather):\n    return []\n"
    )
    assert (
        failure(site.host())
        == "PluginError: hook 'schedules' takes 'weather', which it is not given: it may take target"
    )


def test_a_failing_import_is_kept_as_data(site: Site) -> None:
    site.install("good", GOOD)
    site.install("failing", "import a_package_that_is_not_there\n")
    host = site.host()
    assert failure(host) == "ModuleNotFoundError: No module named 'a_package_that_is_not_there'"
    assert isinstance(host.quarantined()[0].error, ModuleNotFoundError)
    assert [p.name for p in host.plugins if p.healthy] == ["good"]


def test_a_plugin_out_of_range_is_not_even_imported(site: Site) -> None:
    site.install("old", "raise AssertionError('imported')\n", requires="weft (>=0.0.1,<0.1)")
    assert (
        failure(site.host("0.1.0"))
        == "needs weft<0.1,>=0.0.1, this is weft 0.1.0: install another version of old, or weft<0.1,>=0.0.1"
    )
    assert "old" not in sys.modules


HOLD = (
    "weft>=0.1rc1", "Weft>=0.1", "weft[extra]>=0.1 ; python_version > '3'", "weft>=5 ; extra == 'x'", "weft-llvm>=99",
    "",
)  # fmt: skip


@pytest.mark.parametrize("requires", ["weft_core>=9", "Weft.Core>=9", "weft-core>=9"])
def test_other_spellings_of_a_range_that_does_not_hold(site: Site, requires: str) -> None:
    site.install("good", GOOD, requires=requires)
    assert failure(site.host()).startswith("needs weft>=9, this is weft 0.1.0")


@pytest.mark.parametrize("requires", HOLD)
def test_ranges_that_hold(site: Site, requires: str) -> None:
    site.install("good", GOOD, requires=requires)
    assert site.host().quarantined() == []


def test_an_unreadable_requirement_quarantines_that_plugin_alone(site: Site) -> None:
    site.install("good", GOOD)
    site.install("broken", GOOD, requires="weft>=,<")
    assert failure(site.host()).startswith("its metadata cannot be read: ")


def test_a_part_of_weft_keeps_its_plugin_name(site: Site) -> None:
    site.install("another", GOOD, plugin="ops")
    mine = [
        e
        for e in metadata.entry_points(group="weft.plugins")
        if e.dist is not None and e.dist.name in ("another", "weft-ops")
    ]
    for entries in (mine, mine[::-1]):
        found = PluginHost(entries, "0.1.0")
        assert [(p.distribution, p.healthy) for p in found.plugins if p.name == "ops" and p.healthy] == [
            ("weft-ops", True)
        ]
        (out,) = found.quarantined()
        assert out.distribution == "another" and out.failure is not None and "rename this one" in out.failure
        assert "Relu" in operator_classes(found)


def test_a_part_of_weft_that_fails_is_an_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library's passes results would be others, and stored under the key of the right ones."""
    import weft
    import weft_ops.plugin
    from weft_testing.models import mlp

    def broken() -> None:
        raise RuntimeError("half installed")

    everything = PluginHost()
    implementation = next(i for i in everything.manager.hook.graph_passes.get_hookimpls() if i.plugin_name == "ops")
    monkeypatch.setattr(implementation, "function", broken)
    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", lambda: everything)
    assert weft_ops.plugin.graph_passes is not broken
    with pytest.raises(PluginError, match=r"weft-ops [\d.]+\) failed in hook 'graph_passes'(.|\n)*half installed"):
        weft.compile(mlp(), "c", cache=False)
    (library,) = [p for p in everything.plugins if p.name == "ops"]
    library.failure = "ImportError: half installed"
    with pytest.raises(
        PluginError, match=r"a part of Weft itself, is out of use(.|\n)*pip install --force-reinstall weft-ops"
    ):
        resolve_target("c", everything)


def test_a_function_as_a_pass_without_the_operator_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import weft
    from weft_testing.models import mlp

    everything = PluginHost()
    everything.unregister("ops")
    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", lambda: everything)
    seen: list[int] = []

    def look(graph: Any) -> Any:
        seen.append(len(graph.nodes))
        return graph

    weft.compile(mlp(), "c", passes=[look], cache=False)
    assert seen


def test_two_distributions_with_one_plugin_name_are_both_out(site: Site) -> None:
    site.install("first", GOOD, plugin="same")
    site.install("second", GOOD, plugin="same")
    host = site.host()
    expected = "the plugin 'same' is provided by first and second: keep one"
    assert [p.failure for p in host.plugins] == [expected, expected]
    assert host.items("engines") == []


@pytest.mark.parametrize("broken", ["first", "second", "third", ""])
def test_all_distributions_with_one_plugin_name_are_out_however_many_and_whichever_is_broken(
    site: Site, broken: str
) -> None:
    for name in ("first", "second", "third"):
        site.install(name, "import gone\n" if name == broken else GOOD, plugin="same")
    host = site.host()
    assert [p.failure for p in host.plugins] == [
        "the plugin 'same' is provided by first and second and third: keep one"
    ] * 3
    assert host.items("engines") == []


def test_a_distribution_seen_twice_on_the_path_is_one(site: Site) -> None:
    site.install("good", GOOD)
    (entry,) = (e for e in metadata.entry_points(group="weft.plugins") if e.name == "good")
    assert len(PluginHost([entry, entry], "0.1.0").plugins) == 1


def test_an_exception_in_a_hook_loses_that_result_only(site: Site) -> None:
    site.install("before", GOOD)
    site.install(
        "failing", "from weft.hooks import hookimpl\n@hookimpl\ndef engines():\n    raise RuntimeError('no licence')\n"
    )
    site.install("later", GOOD)
    host = site.host()
    said = (
        r"^plugin 'failing' \(failing 1\.5\) failed in hook 'engines', and is left out there: RuntimeError: no licence"
    )
    with pytest.warns(PluginWarning, match=said) as caught:
        assert [c.plugin.name for c in host.items("engines")] == ["before", "later"]
        host.items("engines")
    assert len(caught) == 1, "once"
    ((plugin, hook, error),) = host.failures
    assert (plugin.name, hook, str(error)) == ("failing", "engines", "no licence")


def test_an_error_that_was_raised_is_warned_of_where_it_is_not(site: Site) -> None:
    site.install(
        "failing", "from weft.hooks import hookimpl\n@hookimpl\ndef engines():\n    raise RuntimeError('no licence')\n"
    )
    host = site.host()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(PluginError, match="no licence"):
                host.call("engines", required="failing")
    with pytest.warns(PluginWarning, match="no licence") as caught:
        assert host.call("engines") == host.call("engines") == []
    assert len(caught) == 1 and len(host.failures) == 1


def test_a_hook_that_fails_for_several_targets_is_warned_of_for_each(site: Site) -> None:
    site.install("npu", TARGET.replace("{before}", ""))
    site.install("failing", "from weft.hooks import hookimpl\n@hookimpl\ndef schedules(target): 1 // 0\n")
    host = site.host()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # as Python shows them: one text at one place once
        for tiles in (2, 8, 2):
            assert resolve_target(f"npu -tiles={tiles}", host).rules == ()
    said = [str(w.message) for w in caught if w.category is PluginWarning]
    assert len(said) == 2 and len(host.failures) == 1
    for text, tiles in zip(said, (2, 8)):
        assert text.startswith(
            f"plugin 'failing' (failing 1.5) failed in hook 'schedules' for the target 'npu -tiles={tiles}', and is"
            " left out there: ZeroDivisionError: "
        )


def test_the_failure_of_a_plugin_that_was_named_is_fatal(site: Site) -> None:
    site.install("npu", TARGET.replace("{before}", "raise OSError('driver too old')"))
    with pytest.raises(PluginError) as caught:
        resolve_target("npu -tiles=2", site.host())
    assert str(caught.value) == "plugin 'npu' (npu 1.5) failed in hook 'targets'\n  why: driver too old (in npu.py:21)"
    assert isinstance(caught.value.__cause__, OSError)


def test_a_target_comes_from_its_plugin_with_its_options(site: Site) -> None:
    site.install("npu", TARGET.replace("{before}", ""))
    resolved = resolve_target("npu -tiles=8", site.host())
    assert str(resolved.target) == "npu -tiles=8"
    assert resolved.rules == ()


def test_a_schedule_hook_that_fails_is_fatal_for_the_target_of_the_same_plugin(site: Site) -> None:
    site.install(
        "npu", TARGET.replace("{before}", "") + "\n@hookimpl\ndef schedules(target):\n    raise OSError('no rules')\n"
    )
    with pytest.raises(PluginError, match=r"plugin 'npu' \(npu 1\.5\) failed in hook 'schedules'\n  why: no rules"):
        resolve_target("npu", site.host()).rules  # noqa: B018 - asked for at first use


def test_a_target_of_two_plugins_names_both(site: Site) -> None:
    site.install("npu-one", TARGET.replace("{before}", ""))
    site.install("npu-two", TARGET.replace("{before}", ""))
    site.install("other", TARGET.replace("{before}", "").replace('"npu"', '"other"'))
    host = site.host()
    assert list(target_kinds(host)) == ["other"]
    assert resolve_target("other", host).target.kind == "other"
    for text in ("npu -tiles=2", "other, npu"):
        with pytest.raises(PluginError) as caught:
            resolve_targets(text, host)
        assert (
            str(caught.value)
            == "the target 'npu' is claimed by plugin 'npu-one' (npu-one 1.5) and plugin 'npu-two' (npu-two 1.5)\n"
            f"  why: {UNDECIDED}\n  hint: uninstall npu-one or uninstall npu-two"
        )
    assert [(p.name, hook) for p, hook, _ in host.failures] == [("npu-one", "targets"), ("npu-two", "targets")]


def test_a_target_whose_plugin_is_quarantined_says_why(site: Site) -> None:
    site.install("weft-tpu", "import a_driver\n", plugin="tpu")
    with pytest.raises(TargetError) as caught:
        resolve_target("tpu", site.host())
    assert (
        str(caught.value) == "the plugin of target 'tpu' is not in use\n  tpu\n"
        "  hint: weft-tpu 1.5 is installed but out of use: ModuleNotFoundError: No module named 'a_driver'"
    )


def test_an_unknown_target_names_the_plugins_that_are_out_of_use(site: Site) -> None:
    site.install("acme", "import no_such_driver\n")
    with pytest.raises(TargetError) as caught:
        resolve_target("npu", site.host())
    why = "acme 1.5 is out of use: ModuleNotFoundError: No module named 'no_such_driver'"
    assert str(caught.value) == f"unknown target 'npu'\n  npu\n  why: {why}\n  hint: available: none"


FRONTEND = """
from weft.hooks import Frontend, hookimpl

@hookimpl
def frontends():
    return [Frontend({names}, lambda head: {sniff}, lambda o: o == 7, lambda source, options: None)]
"""


def install_frontends(site: Site, monkeypatch: pytest.MonkeyPatch, names: str, *sniffs: str) -> PluginHost:
    for name, sniff in zip(("one", "two", "three"), sniffs):
        site.install(name, FRONTEND.replace("{names}", names).replace("{sniff}", sniff))
    found = site.host()
    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", lambda: found)
    return found


@pytest.mark.parametrize(
    ("sniffs", "claims"),
    [(("True", "True"), "content of this kind"), (("False", "False"), "files '.xyz', and none recognises its content")],
)
def test_frontends_that_claim_a_suffix_are_both_named(
    site: Site, monkeypatch: pytest.MonkeyPatch, sniffs: tuple[str, str], claims: str
) -> None:
    install_frontends(site, monkeypatch, "'{name}', ('.xyz',)", *sniffs)
    model = site.folder / "model.xyz"
    model.write_text("x")
    with pytest.raises(FrontendError) as caught:
        find_frontend(model)
    assert (
        str(caught.value)
        == f"several frontends take '{model}': 'one' of plugin 'one' (one 1.5) and 'two' of plugin 'two' (two 1.5)\n "
        f" why: each claims {claims}, and the order of plugins decides nothing\n  hint: name one: frontend='one' or"
        " 'two'; or uninstall one"
    )
    assert find_frontend(model, "two").name == "two"


def test_of_frontends_that_claim_a_suffix_the_one_that_knows_the_content_reads_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_frontends(site, monkeypatch, "'{name}', ('.xyz',)", "head == b'1'", "head == b'2'")
    model = site.folder / "model.xyz"
    for content, name in ((b"1", "one"), (b"2", "two")):
        model.write_bytes(content)
        assert find_frontend(model).name == name


@pytest.mark.parametrize(
    ("model", "what", "claims"),
    [(b"x", "these bytes", "content of this kind"), (7, "an object of type builtins.int", "objects of this")],
)
def test_frontends_that_claim_bytes_or_objects_are_both_named(
    site: Site, monkeypatch: pytest.MonkeyPatch, model: object, what: str, claims: str
) -> None:
    install_frontends(site, monkeypatch, "'{name}', ()", "True", "True", "False")
    third = ", 'three' of plugin 'three' (three 1.5)" if model == 7 else ""
    with pytest.raises(
        FrontendError, match=rf"several frontends take {what}: 'one' of plugin 'one' \(one 1\.5\) and "
    ) as caught:
        find_frontend(model)
    assert caught.value.why is not None and caught.value.why.startswith(f"each claims {claims}")
    assert ("'three' of plugin" in caught.value.what) == bool(third)


def test_a_plugin_that_offers_a_name_twice_is_told_so(site: Site) -> None:
    site.install("npu", TARGET.replace("{before}", "").replace("[Npu()]", "[Npu(), Npu()]"))
    with pytest.raises(PluginError) as caught:
        resolve_target("npu", site.host())
    why = "nothing says which of the claims is meant, and the first is as good as the others"
    assert (
        str(caught.value)
        == f"plugin 'npu' (npu 1.5) claims the target 'npu' twice\n  why: {why}\n  hint: a defect of the plugin"
    )


def test_an_operator_that_two_claim_is_an_error_where_it_is_named_the_cores_included(site: Site) -> None:
    operators = (
        "from weft.hooks import hookimpl\n@hookimpl\ndef operators():\n    from weft_ops.activation import Relu as"
        " Base\n"
    )
    operators += "    return [type(n, (Base,), {}) for n in GIVEN]\n"
    site.install("one", operators.replace("GIVEN", "('Twice', 'Relu', 'Group', 'One')"))
    site.install("two", operators.replace("GIVEN", "('Twice', 'Two')"))
    host = site.host()
    from weft import core_plugin
    from weft_ops import plugin as library

    host.register(core_plugin, "core")
    host.register(library, "ops")
    found, clashes = operator_claims(host)
    assert {"One", "Two", "Sigmoid", "Relayout"} <= found.keys() and found.keys() == operator_classes(host).keys()
    assert clashes.keys() == {"Twice", "Relu", "Group"} and not clashes.keys() & found.keys()
    assert (
        str(clashes["Twice"])
        == "the operator 'Twice' is claimed by plugin 'one' (one 1.5) and plugin 'two' (two 1.5)\n"
        f"  why: {UNDECIDED}\n  hint: uninstall one or uninstall two or give one another `operator_name`"
    )
    assert (
        clashes["Group"].what
        == "the operator 'Group' is claimed by plugin 'core' (registered by hand) and plugin 'one' (one 1.5)"
    )
    assert clashes["Group"].hint == "uninstall one or give one another `operator_name`", "nobody uninstalls the core"
    assert (
        clashes["Relu"].what
        == "the operator 'Relu' is claimed by plugin 'one' (one 1.5) and plugin 'ops' (registered by hand)"
    )
    assert {p.name for p, _, _ in host.failures} == {"one", "two", "ops"}, "the core is not to blame"


def test_a_frontend_that_two_claim(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = "from weft.hooks import Frontend, hookimpl\n@hookimpl\ndef frontends():\n"
    frontend += (
        "    return [Frontend(n, ('.' + n,), lambda head: False, lambda o: False, lambda source, options: None) for n"
        " in ('same', '{name}')]\n"
    )
    for name in ("one", "two"):
        site.install(name, frontend)
    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", site.host)
    model = site.folder / "model.one"
    model.write_text("x")
    assert find_frontend(model).name == "one", "others are not harmed"
    said = "the frontend 'same' is claimed by plugin 'one' (one 1.5) and plugin 'two' (two 1.5)"
    with pytest.raises(PluginError) as caught:
        find_frontend(model, "same")
    assert str(caught.value) == f"{said}\n  why: {UNDECIDED}\n  hint: uninstall one or uninstall two"
    same = site.folder / "model.same"
    same.write_text("x")
    with pytest.raises(PluginError, match=re.escape(said)):  # naming it would not help
        find_frontend(same)


def test_an_engine_that_two_claim(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weft_testing.cli.bench import choose_engines
    from weft_testing.cli.verify import _other

    monkeypatch.setattr("weft.plugins.host", functools.cache(site.host))
    engines = GOOD.replace('"{name}-engine"', "n").replace(
        "threads: None)]", "threads: None) for n in ('same', '{name}')]"
    )
    for name in ("one", "two"):
        site.install(name, engines)
    said = "the engine 'same' is claimed by plugin 'one' (one 1.5) and plugin 'two' (two 1.5)"
    with pytest.raises(PluginError, match=re.escape(said)):
        choose_engines(engine_kinds(), "one,same", "no.onnx")
    with pytest.raises(PluginError, match=re.escape(said)):
        _other("no.onnx", "llvm", "same", None)
    assert [k.name for k in choose_engines(engine_kinds(), "all", "no.onnx")] == ["one", "two"], (
        "the others are compared"
    )
    assert capsys.readouterr().err == f"warning: {said}\n  why: {UNDECIDED}\n  hint: uninstall one or uninstall two\n"


@pytest.mark.parametrize(
    ("hook", "made"),
    [
        ("graph_passes", "GraphPass('{}', lambda g: g, 'fold_scale')"),
        ("loop_passes", "LoopPass('{}', lambda p: p, 'simplify')"),
    ],
)
@pytest.mark.parametrize("name", ["mine", "core's"])
def test_a_pass_that_two_claim(hook: str, made: str, name: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import weft
    from weft_testing.models import mlp

    module, what = ("weft.passes.pipeline", "graph") if hook == "graph_passes" else ("weft.loop.pipeline", "loop")
    own = "simplify" if what == "loop" else "fuse"
    source = (
        f"from weft.hooks import hookimpl\n@hookimpl\ndef {hook}(target):\n    from {module} import"
        f" {made.partition('(')[0]}\n"
    )
    source += f"    return [{made.format(own if name != 'mine' else name)}] if target.kind == 'llvm' else []\n"
    for plugin in ("one", "two")[: 2 if name == "mine" else 1]:
        site.install(plugin, source)
    everything = PluginHost()
    assert [p.failure for p in everything.plugins if p.name in ("one", "two")] == [None] * (2 if name == "mine" else 1)
    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", lambda: everything)
    with pytest.raises(PluginError) as caught:
        weft.compile(mlp(), cache=False)
    core = str(everything.core)
    who, hint = (
        ("plugin 'one' (one 1.5) and plugin 'two' (two 1.5)", " or uninstall two")
        if name == "mine"
        else (f"{core} and plugin 'one' (one 1.5)", "")
    )
    assert (
        str(caught.value)
        == f"the {what} pass '{'mine' if name == 'mine' else own}' of target 'llvm' is claimed by {who}\n  why:"
        f" {UNDECIDED}\n  hint: uninstall one{hint}"
    )
    assert ("one", hook) in [(p.name, h) for p, h, _ in everything.failures]
    others = [p.name for p in resolve_target("c", everything).graph_passes()]
    assert others and "mine" not in others, "other targets are not harmed"


def test_a_place_in_the_order_that_two_passes_have() -> None:
    from weft.errors import GraphError, LoopError
    from weft.loop.pipeline import LoopPass, ordered
    from weft.passes.pipeline import GraphPass, pass_names

    graph_passes = [
        GraphPass("twin", lambda g: g),
        GraphPass("twin", lambda g: g),
        GraphPass("last", lambda g: g, "twin"),
    ]
    said = "runs after 'twin', which 2 passes are called\n  hint: give each of them a name of its own"
    with pytest.raises(GraphError, match=f"the graph pass 'last' {said}"):
        pass_names(graph_passes)
    assert pass_names(graph_passes[:2])[:2] == [
        "twin",
        "twin",
    ], "where no other names them, functions may be called the same"
    loop_passes = [
        LoopPass("twin", lambda p: p, ""),
        LoopPass("twin", lambda p: p, ""),
        LoopPass("last", lambda p: p, "twin"),
    ]
    with pytest.raises(LoopError, match=f"the loop pass 'last' {said}"):
        ordered(loop_passes)


def test_assumptions_that_two_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.passes.capabilities import Capabilities

    class Says:
        @hookimpl
        def capabilities(self, target: Any) -> Capabilities:
            return Capabilities()

    everything = with_board(monkeypatch)
    everything.register(Says(), "ours")
    assert resolve_target("board", everything).capabilities == Capabilities()
    everything.register(Says(), "theirs")
    with pytest.raises(PluginError) as caught:
        resolve_target("board", everything).capabilities  # noqa: B018 - asked for at first use
    assert (
        str(caught.value)
        == "what graph passes may assume of target 'board' is claimed by plugin 'ours' (registered by hand) and plugin"
        f" 'theirs' (registered by hand)\n  why: {UNDECIDED}\n  hint: unregister 'ours' or unregister 'theirs'"
    )
    assert resolve_target("llvm", everything).capabilities.panel, "the plugin of a target speaks for it"


DEVICE = """
from weft.hooks import hookimpl
from weft_runtime.device import DeviceKind

@hookimpl
def devices():
    return [DeviceKind("shared", lambda: None, object), DeviceKind("{name}", {missing}, object)]
"""


def test_a_device_that_two_claim_and_one_that_fails_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_runtime import device

    monkeypatch.setattr("weft.plugins.host", functools.cache(site.host))
    monkeypatch.setattr(device, "_open", {})
    site.install("one", DEVICE.replace("{missing}", "lambda: None"))
    site.install("two", DEVICE.replace("{missing}", "lambda: (_ for _ in ()).throw(ZeroDivisionError('no'))"))
    assert sorted(device_kinds()) == ["one", "shared", "two"]
    for name, why in (
        (
            "shared",
            (
                "the device 'shared' is not here\n  why: the device 'shared' is claimed by plugin 'one' (one 1.5) and"
                f" plugin 'two' (two 1.5): {UNDECIDED}; uninstall one or uninstall two"
            ),
        ),
        (
            "two",
            (
                "the device 'two' is not here\n  why: plugin 'two' (two 1.5) failed to say whether it is:"
                " ZeroDivisionError: no"
            ),
        ),
        ("one", "plugin 'one' (one 1.5) opened the device 'one' as object, which is no Device"),
    ):
        with pytest.raises(WeftError) as caught:
            device.open_device(name)
        assert str(caught.value) == why


def test_an_engine_that_fails_to_say_whether_it_is_here_is_not(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.plugins.host", functools.cache(site.host))
    site.install("good", GOOD)
    site.install("worse", GOOD.replace('lambda: "1"', "lambda: 1 // 0"))
    with pytest.warns(PluginWarning, match="'worse'.* failed in hook 'engines', and is left out there: ZeroDivision"):
        assert [(e.name, e.available()) for e in engine_kinds()] == [("good-engine", "1"), ("worse-engine", None)]


def test_a_frontend_that_fails_to_look_takes_nothing_and_leaves_others_in_use(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = "from weft.hooks import Frontend, hookimpl\n@hookimpl\ndef frontends():\n"
    frontend += (
        "    return [Frontend('{name}', (), lambda head: SNIFF, lambda o: SNIFF, lambda source, options: {1:"
        " 2}[source])]\n"
    )
    site.install("broken", frontend.replace("SNIFF", "1 // 0"))
    site.install("good", frontend.replace("SNIFF", "True"))
    host = site.host()
    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", lambda: host)
    said = (
        r"^plugin 'broken' \(broken 1\.5\) failed in hook 'frontends', and is left out there: ZeroDivisionError: .*"
        r" \(in broken\.py:4\)$"
    )
    with pytest.warns(PluginWarning, match=said):
        assert find_frontend(b"xyz").name == "good"
    assert [(p.distribution, h, type(e)) for p, h, e in host.failures] == [("broken", "frontends", ZeroDivisionError)]
    with pytest.raises(PluginError) as caught:
        load(b"xyz")
    assert str(caught.value).splitlines()[:2] == [
        "plugin 'good' (good 1.5) failed to read the model as 'good'",
        "  why: KeyError: b'xyz' (in good.py:4)",
    ]
    with pytest.raises(PluginError, match=r"plugin 'good' \(good 1.5\) read the model as int, which is no Graph"):
        load(1)


# -- how hooks are written, and what they return
# ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def targets(*given): return []", "hook 'targets' takes '*given', which stays empty: it takes no arguments"),
        (
            "def offload(graph, **rest): return None",
            "hook 'offload' takes '**rest', which stays empty: it may take graph, target",
        ),
        (
            "def schedules(traget): return []",
            "hook 'schedules' takes 'traget', which it is not given: did you mean 'target'?",
        ),
        (
            "def schedules(target=None): return []",
            "hook 'schedules' takes 'target' by keyword or with a default, and would not be given it: write (target)",
        ),
        (
            "def schedules(*, target): return []",
            "hook 'schedules' takes 'target' by keyword or with a default, and would not be given it: write (target)",
        ),
        ("def targets(): yield 1", "hook 'targets' is a generator: it returns its result, a list"),
        ("async def targets(): return []", "hook 'targets' is asynchronous: it returns its result itself"),
        ("class targets: pass", "'targets' is marked as a hook and is no function but a type"),
    ],
)
def test_a_hook_that_is_written_wrongly_quarantines(site: Site, source: str, why: str) -> None:
    site.install("good", GOOD)
    site.install("wrong", f"from weft.hooks import hookimpl\n@hookimpl\n{source}\n")
    host = site.host()
    assert failure(host) == f"PluginError: {why}"
    assert [c.plugin.name for c in host.items("engines")] == ["good"]


def test_a_wrapper_is_refused_and_another_name_is_not(site: Site) -> None:
    site.install("wraps", "from weft.hooks import hookimpl\n@hookimpl(wrapper=True)\ndef targets():\n    yield\n")
    assert (
        failure(site.host())
        == "PluginError: hook 'targets' is a wrapper: hooks are called singly, so there is nothing to wrap"
    )
    site.install(
        "named", "from weft.hooks import hookimpl\n@hookimpl(specname='engines')\ndef mine():\n    return []\n"
    )
    assert [p.name for p in site.host().plugins if p.healthy] == ["named"]


def test_a_forgotten_mark_is_noted(site: Site) -> None:
    site.install("forgetful", "def targets():\n    return []\n")
    (plugin,) = site.host().plugins
    assert plugin.healthy
    assert plugin.notes == [
        "it implements no hook",
        "'targets' has the name of a hook and is not marked with @hookimpl",
    ]


def test_an_exit_at_import_or_in_a_hook_ends_nothing(site: Site) -> None:
    site.install("exits", "raise SystemExit('no licence')\n")
    site.install("leaves", "import sys\nfrom weft.hooks import hookimpl\n@hookimpl\ndef engines(): sys.exit('gone')\n")
    host = site.host()
    assert failure(host) == "SystemExit: no licence"
    assert host.items("engines") == [] and str(host.failures[0][2]) == "gone"


def test_what_is_registered_by_hand_is_looked_at_too() -> None:
    class Wrong:
        @hookimpl
        def target(self) -> list[object]:
            return []

    host = PluginHost([])
    with pytest.raises(PluginError, match=r"unknown hook 'target', did you mean 'targets'\?"):
        host.register(Wrong(), "wrong")
    assert host.plugins == []


def test_every_hook_has_a_kind_of_result() -> None:
    from weft.contributions import RESULTS

    assert list(RESULTS) == HOOKS


ARGUMENTS: dict[str, object] = {
    "frontend": "onnx",
    "target": None,
    "graph": None,
    "cli": None,
    "stage": None,
    "intrinsics": (),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("value", ["7", "'text'", "(x for x in ())", "[7]", "[object]", "None"])
def test_a_result_of_another_type_loses_it_and_says_so(site: Site, hook: str, value: str) -> None:
    from weft.contributions import RESULTS, arguments

    site.install("wrong", f"from weft.hooks import hookimpl\n@hookimpl\ndef {hook}():\n    return {value}\n")
    site.install(
        "z",
        f"from weft.hooks import hookimpl\n@hookimpl\ndef {hook}():\n    return"
        f" {'[]' if 'list' in RESULTS[hook].form else 'None'}\n",
    )
    host = site.host()
    given = {a: ARGUMENTS[a] for a in arguments(hook)}
    found = host.call(hook, **given)
    if RESULTS[hook].form == "nothing" or (value == "None" and RESULTS[hook].form.endswith("or None")):
        assert host.failures == []
        return
    ((plugin, where, error),) = host.failures
    assert (plugin.distribution, where) == ("wrong", hook) and re.match(
        r"gave .*, (not a list of|which is no) ", str(error)
    )
    assert all(c.plugin.name == "z" for c in found)
    with pytest.raises(PluginError, match=rf"plugin 'wrong' \(wrong 1\.5\) failed in hook '{hook}'\n  why: gave "):
        host.call(hook, required="wrong", **given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("[Npu]", "gave the class Npu, which is no TargetKind: write Npu() (in a list of 1)"),
        ("Npu()", "gave a Npu, not a list of TargetKind: return a list of it"),
        ("None", "gave None, not a list of TargetKind: return [] for nothing"),
        ("(Npu() for _ in 'a')", "gave a generator, not a list of TargetKind"),
        ("[type('Bad', (Npu,), {'name': ''})()]", "gave a Bad, whose name is '' (in a list of 1)"),
        (
            "[type('Bad', (Npu,), {'name': 'a b'})()]",
            "gave the target 'a b': a target's name is letters, digits, '_', '.', '+' and '-' (in a list of 1)",
        ),
        (
            "[type('Bad', (Npu,), {'options': dict})()]",
            "gave the target 'npu', whose options are the class dict: they are a frozen dataclass (in a list of 1)",
        ),
    ],
)
def test_a_target_of_another_type_says_how_it_is_written(site: Site, given: str, why: str) -> None:
    site.install("npu", TARGET.replace("{before}", "").replace("[Npu()]", given))
    with pytest.raises(PluginError) as caught:
        resolve_target("npu", site.host())
    assert str(caught.value) == f"plugin 'npu' (npu 1.5) failed in hook 'targets'\n  why: {why}"


def test_an_operator_is_a_class(site: Site) -> None:
    site.install(
        "wrong",
        "from weft.hooks import hookimpl\n@hookimpl\ndef operators():\n    from weft_ops import Relu\n    return"
        " [Relu()]\n",
    )
    host = site.host()
    assert host.items("operators") == []
    assert (
        str(host.failures[0][2])
        == "gave Relu(), which is no class derived from Operator: give the class itself (in a list of 1)"
    )


def test_a_target_whose_methods_fail_is_named_with_its_distribution(site: Site) -> None:
    site.install("npu", TARGET.replace("{before}", "").replace('return Machine("npu", 128, 8)', "return 1 // 0"))
    resolved = resolve_target("npu", site.host())
    with pytest.raises(PluginError) as caught:
        resolved.machine  # noqa: B018 - asked for at first use
    expected = [
        "plugin 'npu' (npu 1.5) failed to describe its machine",
        "  why: ZeroDivisionError: integer division or modulo by zero (in npu.py:14)",
    ]
    assert str(caught.value).splitlines()[:2] == expected
    site.install(
        "tpu", TARGET.replace("{before}", "").replace('"npu"', '"tpu"').replace('return "1"', "raise RuntimeError")
    )
    with pytest.raises(
        PluginError, match=r"plugin 'tpu' \(tpu 1\.5\) failed to resolve the target 'tpu'\n  why: RuntimeError"
    ):
        resolve_target("tpu", site.host())


def test_an_option_out_of_range_is_an_error_of_the_target(site: Site) -> None:
    check = (
        "    tiles: int = 4\n    def __post_init__(self):\n        if self.tiles > 8: raise ValueError(f'tiles is at"
        " most 8, got {self.tiles}')\n"
    )
    site.install(
        "npu", TARGET.replace("{before}", "").replace("    tiles: int = 4\n", check + "    clock: float = 1.5\n")
    )
    assert resolve_target("npu -tiles=8 -clock=2", site.host()).target.options.clock == 2.0
    with pytest.raises(TargetError) as caught:
        resolve_target("npu -tiles=9", site.host())
    assert str(caught.value) == "target 'npu' has no such options\n  npu -tiles=9\n  why: tiles is at most 8, got 9"
    with pytest.raises(TargetError, match="option '-clock' takes a number, got 'fast'"):
        resolve_target("npu -clock=fast", site.host())


@pytest.mark.parametrize("hook", HOOKS)
def test_a_plugin_that_raises_in_any_hook_harms_nobody_else(
    hook: str, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model is read, compiled for two targets and run, and the command line works; the list of plugins says what
    failed."""
    import weft
    from weft.cli.main import main
    from weft_runtime import device
    from weft_testing.models import mlp

    site.install(
        "failing",
        f"from weft.hooks import hookimpl\n@hookimpl\ndef {hook}():\n    raise RuntimeError('broken in {hook}')\n",
    )
    everything = PluginHost()

    class Reader:
        @hookimpl
        def frontends(self) -> list[Frontend]:
            return [
                Frontend("mlp", (), lambda head: head == b"mlp", lambda model: False, lambda source, options: mlp())
            ]

    everything.register(Reader(), "reader")
    everything.register(board, "board")
    for module in (
        "mixed",
        "compilation",
        "loading",
        "resolve",
        "pipeline",
        "plugins",
    ):  # the last: what is imported meanwhile keeps what it finds there
        monkeypatch.setattr(f"weft.{module}.host", lambda: everything)
    monkeypatch.setattr(device, "_open", {})
    x = np.ones((2, 64), np.float32)
    executable = weft.compile(b"mlp", "board -ops=Relu, llvm", cache=False)
    assert "device" in {s.kind for s in executable.manifest.steps}
    (expected,) = evaluate(mlp(), {"x": x})
    np.testing.assert_allclose(executable.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(SystemExit) as stop:
        main(["plugins"])
    assert not stop.value.code
    assert f"failing: hook '{hook}' failed: RuntimeError: broken in {hook}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "doing"),
    [
        ("offer", "to say whether it takes MatMul"),
        ("apply", "to schedule kernel"),
        ("check", "to compile kernel"),
        ("compile", "to compile kernel"),
        ("image", "to make one section of its kernels"),
        ("resolve", "to resolve the target 'board -ops=Relu'"),
        ("fingerprint", "to resolve the target 'board -ops=Relu'"),
        ("machine", "to describe its machine"),
        ("codegen", "to make its code generator"),
        ("device", "to name its device"),
        ("transfer", "to say what copies take"),
        ("describe", "to describe itself"),
    ],
)
def test_what_a_plugin_contributed_and_fails_is_named(place: str, doing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import weft
    from weft_testing.models import mlp

    def fails(*arguments: object) -> None:
        raise ZeroDivisionError("no")

    owner = next(c for c in (board.Text, board.Anything, board.Board) if hasattr(c, place))
    monkeypatch.setattr(owner, place, fails)
    with_board(monkeypatch)
    with pytest.raises(PluginError) as caught:
        weft.compile(mlp(), "board -ops=Relu, llvm", cache=False)
    assert str(caught.value).startswith(f"plugin 'board' (registered by hand) failed {doing}")
    assert "why: ZeroDivisionError: no" in str(caught.value)
    assert weft.compile(mlp(), cache=False).manifest.steps, "others go on"


def with_board(monkeypatch: pytest.MonkeyPatch) -> PluginHost:
    everything = PluginHost()
    everything.register(board, "board")
    for module in (
        "mixed",
        "compilation",
        "loading",
        "resolve",
        "pipeline",
        "plugins",
    ):  # the last: what is imported meanwhile keeps what it finds there
        monkeypatch.setattr(f"weft.{module}.host", lambda: everything)
    return everything


@pytest.mark.parametrize(
    ("place", "given", "said"),
    [
        ("resolve", None, "failed to resolve the target 'board'\n  why: TypeError: it gave None and the fingerprint "),
        ("fingerprint", 7, "failed to resolve the target 'board'\n  why: TypeError: it gave Target("),
        (
            "machine",
            "fast",
            "failed to describe its machine\n  why: TypeError: machine gave 'fast', which is no Machine",
        ),
        ("device", None, "failed to name its device\n  why: TypeError: device gave None, which is no str"),
        (
            "transfer",
            1e-6,
            "failed to say what copies take\n  why: TypeError: transfer gave 1e-06, which is no Transfer",
        ),
    ],
)
def test_what_a_target_says_of_itself_has_its_type(
    place: str, given: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import weft
    from weft_testing.models import mlp

    def answer(self: object, target: object) -> object:
        return given

    answer.__name__ = place
    monkeypatch.setattr(board.Board, place, answer)
    with_board(monkeypatch)
    with pytest.raises(PluginError) as caught:
        weft.compile(mlp(), "board, llvm", cache=False)
    assert str(caught.value).startswith(f"plugin 'board' (registered by hand) {said}")


def test_the_hosts_names_are_no_devices(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    import weft
    from weft_testing.models import mlp

    monkeypatch.setattr(board.Board, "device", lambda self, target: "host")
    with_board(monkeypatch)
    with pytest.raises(
        PluginError,
        match=(
            "the target 'board' names 'host' as its device, which is the host's memory in plans\n  hint: name it"
            " otherwise"
        ),
    ):
        weft.compile(mlp(), "board, llvm", cache=False)
    for name in ("cpu", "host"):
        site.install(name, DEVICE.replace("{missing}", "lambda: None"))
    everything = site.host()
    assert everything.items("devices") == []
    said = [str(error) for _, _, error in everything.failures]
    assert said == [
        f"gave the device '{n}', which is the host's own name: call it otherwise (in a list of 2)"
        for n in ("cpu", "host")
    ]


def offering(offer: Callable[[Any], object]) -> object:
    class Offering:
        @hookimpl
        def offload(self, graph: Any, target: Any) -> Any:
            return offer(graph) if target.kind == "board" else None

    return Offering()


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        (lambda g: [Take(())], "it takes no nodes (a Take of none)"),
        (
            lambda g: [Take((g.nodes[0],), -1.0)],
            "it takes %dense0 = MatMul(dtype=none)(%x, %dense0.weight) in -1.0 seconds",
        ),
        (
            lambda g: [Take((g.nodes[0],), float("nan"))],
            "it takes %dense0 = MatMul(dtype=none)(%x, %dense0.weight) in nan seconds",
        ),
        (
            lambda g: [Refuse(mlp_node(), "no", "no")],
            "it speaks of %dense1.bias_add = Add()(%dense1, %dense1.bias), which is no node of the graph",
        ),
    ],
)
def test_offers_that_cannot_be_weighed(
    offer: Callable[[Any], object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import weft
    from weft_testing.models import mlp

    everything = with_board(monkeypatch)
    everything.register(offering(offer), "stranger")
    left_out = rf"'stranger'.* failed in hook 'offload' for the target 'board -ops=Relu', and is .*{re.escape(said)}"
    with pytest.warns(PluginWarning, match=left_out):
        executable = weft.compile(mlp(), "board -ops=Relu, llvm", cache=False)  # as if the stranger were not there
    assert "device" in {s.kind for s in executable.manifest.steps}
    ((plugin, hook, error),) = everything.failures
    assert (plugin.name, hook) == ("stranger", "offload") and str(error).startswith(said)
    monkeypatch.setattr(
        board,
        "offload",
        hookimpl(lambda graph, target: offer(graph) if target.kind == "board" else None, specname="offload"),
        raising=False,
    )
    with_board(monkeypatch)
    with warnings.catch_warnings(), pytest.raises(PluginError) as caught:
        warnings.simplefilter("error", PluginWarning)
        weft.compile(mlp(), "board -ops=Relu, llvm", cache=False)
    assert str(caught.value).startswith(f"plugin 'board' (registered by hand) failed in hook 'offload'\n  why: {said}")


def mlp_node() -> Any:
    from weft_testing.models import mlp

    return mlp().nodes[-1]


@pytest.mark.parametrize("hook", ["graph_passes", "loop_passes"])
def test_a_pass_of_a_plugin_that_fails_is_named(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import weft
    from weft.loop.pipeline import LoopPass
    from weft.passes.pipeline import GraphPass
    from weft_testing.models import mlp

    class Passes:
        pass

    made = (
        GraphPass("mine", lambda g: g.nothing, "fold_constants")
        if hook == "graph_passes"
        else LoopPass("mine", lambda p: p.nothing, "simplify")
    )
    setattr(Passes, hook, hookimpl(lambda self: [made], specname=hook))
    everything = PluginHost()
    everything.register(Passes(), "passes")
    for module in ("loading", "pipeline", "resolve"):
        monkeypatch.setattr(f"weft.{module}.host", lambda: everything)
    what = hook.split("_")[0]
    with pytest.raises(
        PluginError, match=rf"plugin 'passes' \(.*\) failed in its {what} pass 'mine'\n  why: AttributeError: "
    ):
        weft.compile(mlp(), cache=False)


# -- memories ---------------------------------------------------------------------------------------------------------


def test_what_a_program_needs_of_a_memory_at_once() -> None:
    from weft.loop.parser import parse_program
    from weft.machine import Machine, Scope
    from weft.scheduling.scopes import overflow

    program = parse_program("""
    program p(x: float32[64], n: float32[m]) -> (y: float32[64]) dims(m) {
      allocate a: float32[64] in `chip`
      for i in 64 { a[i] = x[i] }
      for i in 2 {
        allocate b: int8[100] in `chip`
        b[0] = 1i8
      }
      for i in 2 {
        allocate c: float32[m] in `chip`
        allocate r: float32[1000] in register
        allocate d: float64[20] in `chip`
        d[0] = 1.0f64
      }
      for i in 64 { y[i] = a[i] }
    }
    """)

    def said(**scopes: int | None) -> str | None:
        return overflow(program, Machine("m", 128, 8, scopes={n: Scope(n, size, 32) for n, size in scopes.items()}))

    # 256 for a; beside it 128 for b, or 192 for d and an unknown c, which only a run could count.
    assert said(chip=447) == "needs 448 bytes of scope 'chip', there are 447"
    assert said(chip=448) is said(chip=None) is said(other=1) is said(register=1) is None


def test_room_between_buffers_is_counted_by_what_memory_and_buffers_are_aligned_to() -> None:
    from weft.loop.parser import parse_program
    from weft.machine import Machine, Scope
    from weft.scheduling.scopes import overflow

    def said(asked: str, align: int) -> str | None:
        both = f"allocate a: int8[4] in chip {asked} {{ allocate b: int8[4] in chip {asked} {{ y[0] = x[0] }} }}"
        text = f"program p(x: float32[4]) -> (y: float32[4]) {{ {both} }}"
        return overflow(parse_program(text), Machine("m", 128, 8, scopes={"chip": Scope("chip", 1, align)}))

    assert said("align 16", 16) == "needs 32 bytes of scope 'chip', there are 1"
    assert said("align 16", 128) == "needs 256 bytes of scope 'chip', there are 1"
    assert said("", 16) == "needs 128 bytes of scope 'chip', there are 1"  # buffers that say nothing ask for 64


class Greedy(Rule):
    name, priority = "greedy", 10

    def offer(self, program: Program, machine: Machine) -> Offer | Decline:
        return Offer(1.0)

    def apply(self, schedule: Schedule) -> None:
        schedule.cache_write(schedule.blocks()[0], "board.chip")


@pytest.mark.parametrize("others", [True, False])
def test_a_memory_that_a_schedule_overflows(others: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next rule has its turn; if there is none, the error names rule, memory and distribution. Other targets are as
    they were."""
    from weft.compilation import Compilation
    from weft.machine import Scope
    from weft.resolve import resolve_target
    from weft_testing.models import mlp

    monkeypatch.setattr(
        board.Board,
        "machine",
        lambda self, target: Machine("board", 128, 16, scopes={"board.chip": Scope("board.chip", 100)}),
    )
    rules = [Greedy(), *([board.Anything(["MatMul", "Add", "Relu"])] if others else [])]
    monkeypatch.setattr(
        board, "schedules", hookimpl(lambda target: rules if target.kind == "board" else [], specname="schedules")
    )
    with_board(monkeypatch)
    import weft

    if others:
        compilation = Compilation(resolve_target("board"), cache=False)
        with pytest.warns(
            ScheduleWarning,
            match=r"^kernel '\w+' was left to rule 'anything', which may be slow: greedy: failed: it needs 768 bytes",
        ):
            kernel = next(iter(compilation.compile_kernels(compilation.optimize(mlp(batch=2)))), None)
        assert kernel is not None
        assert {k.rule for k in compilation.kernels.values()} == {"anything"}
        said = [text for k in compilation.kernels.values() for name, text in k.declines if name == "greedy"]
        assert said[0] == "failed: it needs 768 bytes of scope 'board.chip', there are 100"
        return
    with pytest.raises(WeftError) as caught:
        weft.compile(mlp(batch=2), "board", cache=False)
    text = str(caught.value)
    assert "no schedule rule takes program" in text
    assert (
        "  why: greedy: failed: it needs 768 bytes of scope 'board.chip', there are 100\n  hint: the rules are those of"
        " plugin 'board'" in text
    )
    assert weft.compile(mlp(batch=2), "llvm", cache=False).manifest.steps


def test_a_limit_of_a_target_of_its_own_takes_a_program_from_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `TargetKind.exceeds` says stands beside what the machine's description says, and the next rule has its
    turn."""
    from weft.compilation import Compilation
    from weft.machine import Scope
    from weft.resolve import resolve_target
    from weft_testing.models import mlp

    def exceeds(self: object, program: Program, machine: Machine) -> str | None:
        return f"needs a {machine.kind} for two" if "board.chip" in str(program) else None

    monkeypatch.setattr(
        board.Board,
        "machine",
        lambda self, target: Machine("board", 128, 16, scopes={"board.chip": Scope("board.chip", 100)}),
    )
    monkeypatch.setattr(board.Board, "exceeds", exceeds)
    rules = [Greedy(), board.Anything(["MatMul", "Add", "Relu"])]
    monkeypatch.setattr(
        board, "schedules", hookimpl(lambda target: rules if target.kind == "board" else [], specname="schedules")
    )
    with_board(monkeypatch)
    compilation = Compilation(resolve_target("board"), cache=False)
    with pytest.warns(ScheduleWarning, match="which may be slow: greedy: failed: it needs 768 bytes"):
        compilation.compile_kernels(compilation.optimize(mlp(batch=2)))
    said = [text for k in compilation.kernels.values() for name, text in k.declines if name == "greedy"]
    assert said[0] == "failed: it needs 768 bytes of scope 'board.chip', there are 100; needs a board for two"


def test_registering_by_hand_and_taking_it_back() -> None:
    class Engines:
        pass

    host = PluginHost([])
    plugin = Engines()
    host.register(plugin, "mine")
    assert [p.distribution for p in host.plugins] == ["(registered by hand)"]
    with pytest.raises(
        PluginError, match="there is a plugin 'mine' already\n  hint: unregister it before, or give another name"
    ):
        host.register(Engines(), "mine")
    host.unregister("mine")
    assert host.plugins == []


def test_an_entry_point_without_a_distribution_loads() -> None:
    (plugin,) = PluginHost([metadata.EntryPoint("core", "weft.core_plugin", "weft.plugins")], "0.1.0").plugins
    assert (plugin.distribution, plugin.healthy) == ("(no distribution)", True)


def test_the_missing_package_is_named() -> None:
    assert (
        PluginHost([]).missing("cuda", "weft-cuda")
        == 'weft-cuda is not part of this installation, in Weft\'s repository: pip install ".[gpu]"'
    )
    assert PluginHost([]).missing("abacus", "weft-abacus") == "weft-abacus is not part of this installation"
    assert PluginHost([]).missing("x", None) == "see `weft plugins`"


# -- the specifications -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_an_example_that_implements_it(hook: str) -> None:
    specification = getattr(Specifications, hook)
    text = re.sub(r"^        ", "", specification.__doc__, flags=re.MULTILINE)
    tree = ast.parse(text[text.index("@hookimpl") :])
    (function,) = (f for f in tree.body if isinstance(f, ast.FunctionDef))
    assert function.name == hook
    known = specification.__code__.co_varnames[: specification.__code__.co_argcount]
    assert {a.arg for a in function.args.args} <= set(known)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_row_in_the_architecture(hook: str) -> None:
    assert re.search(rf"^\| `{hook}\(", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)


def test_hooks_are_called_with_what_they_ask_for() -> None:
    heard: list[object] = []

    class Everything:
        pass

    from weft.hooks import hookimpl

    plugin = Everything()
    plugin.stage_done = hookimpl(lambda stage: heard.append(stage))  # type: ignore[attr-defined]
    host = PluginHost([])
    host.register(plugin, "listener")
    report = StageReport("fuse", "model", 0.5)
    assert host.call("stage_done", stage=report) == []
    assert heard == [report]


def test_what_the_system_refuses_is_no_defect_of_the_plugin() -> None:
    for raised, hint in (
        (OSError(28, "No space left on device"), "--traceback"),
        (KeyError("x"), "this is a defect of the plugin; --traceback"),
    ):
        with pytest.raises(PluginError) as error, PluginHost([]).blame("good", "to compile"):
            raise raised
        assert error.value.hint == f"{hint} shows the whole way"
