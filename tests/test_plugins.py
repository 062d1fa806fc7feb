"""Plugins installed as real distributions: what loads, in which order, what is kept out and how that reads."""

from __future__ import annotations

import ast
import importlib.metadata as metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.errors import FrontendError, PluginError, TargetError
from weft.hooks import Specifications, StageReport
from weft.pipeline import find_frontend, resolve_target, target_kinds
from weft.plugins import PluginHost

ROOT = Path(__file__).parents[1]
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
        return PluginHost([e for e in found if e.dist is not None and Path(str(e.dist.locate_file(""))) == self.folder], version)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
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
    site.install("greedy", "from weft.hooks import hookimpl\n@hookimpl\ndef schedules(target, weather):\n    return []\n")
    assert failure(site.host()).startswith("PluginValidationError: ")
    assert "weather" in str(site.host().quarantined()[0].error)


def test_a_failing_import_is_kept_as_data(site: Site) -> None:
    site.install("good", GOOD)
    site.install("failing", "import a_package_that_is_not_there\n")
    host = site.host()
    assert failure(host) == "ModuleNotFoundError: No module named 'a_package_that_is_not_there'"
    assert isinstance(host.quarantined()[0].error, ModuleNotFoundError)
    assert [p.name for p in host.plugins if p.healthy] == ["good"]


def test_a_plugin_out_of_range_is_not_even_imported(site: Site) -> None:
    site.install("old", "raise AssertionError('imported')\n", requires="weft (>=0.0.1,<0.1)")
    assert failure(site.host("0.1.0")) == "needs weft<0.1,>=0.0.1, this is weft 0.1.0"
    assert "old" not in sys.modules


@pytest.mark.parametrize("requires", ["weft>=0.1rc1", "Weft>=0.1", "weft[extra]>=0.1 ; python_version > '3'", "weft>=5 ; extra == 'x'", "weft-llvm>=99", ""])
def test_ranges_that_hold(site: Site, requires: str) -> None:
    site.install("good", GOOD, requires=requires)
    assert site.host().quarantined() == []


def test_an_unreadable_requirement_quarantines_that_plugin_alone(site: Site) -> None:
    site.install("good", GOOD)
    site.install("broken", GOOD, requires="weft>=,<")
    assert failure(site.host()).startswith("its metadata cannot be read: ")


def test_two_distributions_with_one_plugin_name_are_both_out(site: Site) -> None:
    site.install("first", GOOD, plugin="same")
    site.install("second", GOOD, plugin="same")
    host = site.host()
    expected = "two distributions provide the plugin 'same': first and second; uninstall one"
    assert [p.failure for p in host.plugins] == [expected, expected]
    assert host.items("engines") == []


def test_a_distribution_seen_twice_on_the_path_is_one(site: Site) -> None:
    site.install("good", GOOD)
    (entry,) = (e for e in metadata.entry_points(group="weft.plugins") if e.name == "good")
    assert len(PluginHost([entry, entry], "0.1.0").plugins) == 1


def test_an_exception_in_a_hook_loses_that_result_only(site: Site) -> None:
    site.install("before", GOOD)
    site.install("failing", "from weft.hooks import hookimpl\n@hookimpl\ndef engines():\n    raise RuntimeError('no licence')\n")
    site.install("later", GOOD)
    host = site.host()
    assert [c.plugin.name for c in host.items("engines")] == ["before", "later"]
    ((plugin, hook, error),) = host.failures
    assert (plugin.name, hook, str(error)) == ("failing", "engines", "no licence")


def test_the_failure_of_a_plugin_that_was_named_is_fatal(site: Site) -> None:
    site.install("npu", TARGET.replace("{before}", "raise OSError('driver too old')"))
    with pytest.raises(PluginError) as caught:
        resolve_target("npu -tiles=2", site.host())
    assert str(caught.value) == "plugin 'npu' (npu 1.5) failed in hook 'targets'\n  why: driver too old"
    assert isinstance(caught.value.__cause__, OSError)


def test_a_target_comes_from_its_plugin_with_its_options(site: Site) -> None:
    site.install("npu", TARGET.replace("{before}", ""))
    resolved = resolve_target("npu -tiles=8", site.host())
    assert str(resolved.target) == "npu -tiles=8"
    assert resolved.rules == ()


def test_a_schedule_hook_that_fails_is_fatal_for_the_target_of_the_same_plugin(site: Site) -> None:
    site.install("npu", TARGET.replace("{before}", "") + "\n@hookimpl\ndef schedules(target):\n    raise OSError('no rules')\n")
    with pytest.raises(PluginError, match=r"plugin 'npu' \(npu 1\.5\) failed in hook 'schedules'\n  why: no rules"):
        resolve_target("npu", site.host()).rules  # noqa: B018 - asked for at first use


def test_a_target_of_two_plugins_names_both(site: Site) -> None:
    site.install("npu-one", TARGET.replace("{before}", ""))
    site.install("npu-two", TARGET.replace("{before}", ""))
    with pytest.raises(TargetError) as caught:
        target_kinds(site.host())
    assert str(caught.value) == "two plugins offer the target 'npu': npu-one and npu-two\n  hint: uninstall one"


def test_a_target_whose_plugin_is_quarantined_says_why(site: Site) -> None:
    site.install("weft-cuda", "import a_driver\n", plugin="cuda")
    with pytest.raises(TargetError) as caught:
        resolve_target("cuda", site.host())
    assert str(caught.value) == (
        "the plugin of target 'cuda' is not in use\n  cuda\n"
        "  hint: weft-cuda 1.5 is installed but out of use: ModuleNotFoundError: No module named 'a_driver'"
    )


def test_an_unknown_target_names_the_plugins_that_are_out_of_use(site: Site) -> None:
    site.install("acme", "import no_such_driver\n")
    with pytest.raises(TargetError) as caught:
        resolve_target("npu", site.host())
    why = "acme 1.5 is out of use: ModuleNotFoundError: No module named 'no_such_driver'"
    assert str(caught.value) == f"unknown target 'npu'\n  npu\n  why: {why}\n  hint: available: none"


def test_frontends_that_clash_are_both_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = "from weft.hooks import Frontend, hookimpl\n@hookimpl\ndef frontends():\n"
    frontend += "    return [Frontend('{name}', ('.xyz',), lambda head: True, lambda o: False, lambda source, options: None)]\n"
    site.install("one", frontend)
    site.install("two", frontend)
    monkeypatch.setattr("weft.pipeline.host", site.host)
    model = site.folder / "model.xyz"
    model.write_text("x")
    with pytest.raises(FrontendError) as caught:
        find_frontend(model)
    assert str(caught.value) == f"several frontends take '{model}': one, two\n  hint: name one: frontend=…"
    assert find_frontend(model, "two").name == "two"


def test_registering_by_hand_and_taking_it_back() -> None:
    class Engines:
        pass

    host = PluginHost([])
    plugin = Engines()
    host.register(plugin, "mine")
    assert [p.distribution for p in host.plugins] == ["(registered by hand)"]
    host.unregister("mine")
    assert host.plugins == []


def test_an_entry_point_without_a_distribution_loads() -> None:
    (plugin,) = PluginHost([metadata.EntryPoint("core", "weft.core_plugin", "weft.plugins")], "0.1.0").plugins
    assert (plugin.distribution, plugin.healthy) == ("(no distribution)", True)


def test_the_missing_package_is_named() -> None:
    assert PluginHost([]).missing("cuda", "weft-cuda") == "pip install weft-cuda"
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
