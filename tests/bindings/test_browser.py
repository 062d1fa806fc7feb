"""The JavaScript runtime in Chromium: the zoo, threads, the demo page."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from benchmarks.models import NAMES, TINY, twin
from tests.bindings.browser import ISOLATED, opened, page, served
from tests.bindings.node import FOLDER, given, taken
from tests.test_zoo import assert_near

import weft
from weft_testing.models import transformer

pytestmark = [pytest.mark.full, pytest.mark.needs("browser")]
TARGET = "llvm -mtriple=wasm32"


@pytest.mark.parametrize("name", [*NAMES, *TINY])
def test_model(name: str, tmp_path: Path) -> None:
    model, inputs = twin(name)
    graph = weft.load(model)
    (want,) = weft.compile(graph, "llvm", cache=False).run(inputs).values()
    weft.export(graph, tmp_path / "m.wasm", target=TARGET)
    calls = [{n: given(a) for n, a in inputs.items()}]
    _, answer = page({"calls": calls}, (tmp_path / "m.wasm").read_bytes())
    (got,) = map(taken, answer.values())
    assert_near(got, want)


@pytest.mark.needs("weft_webgpu")
@pytest.mark.parametrize("name", [*NAMES, *TINY])
def test_model_on_the_gpu(name: str, tmp_path: Path) -> None:
    model, inputs = twin(name)
    graph = weft.load(model)
    (want,) = weft.compile(graph, "llvm", cache=False).run(inputs).values()
    exe = weft.compile(graph, f"webgpu, {TARGET}")
    assert "device" in [s.kind for s in exe.manifest.steps]
    weft.export(exe, tmp_path / "m.wasm")
    _, answer = page(
        {"calls": [{n: given(a) for n, a in inputs.items()}]}, (tmp_path / "m.wasm").read_bytes(), gpu=True
    )
    (got,) = map(taken, answer.values())
    assert_near(got, want)


def test_threads_where_the_headers_allow_them(tmp_path: Path) -> None:
    weft.export(transformer(), tmp_path / "m.wasm", target=TARGET + " -mattr=+atomics -threads=2")
    draw = np.random.default_rng(0)
    exe = weft.compile(transformer(), "llvm")
    inputs = {
        i.name: draw.standard_normal([d if isinstance(d, int) else 33 for d in i.shape]).astype(i.dtype)
        for i in exe.inputs
    }
    job = {"calls": [{n: given(a) for n, a in inputs.items()}] * 20, "threads": 2}
    model = (tmp_path / "m.wasm").read_bytes()
    told, *several = page(job, model)
    assert told["threads"] == 2 and "oneThread" not in told
    told, *one = page(job, model, isolated=False)
    assert (told["threads"], told["oneThread"]) == (1, "the page lacks the headers COOP and COEP")
    assert several == one
    for name, value in exe.run(inputs).items():
        np.testing.assert_allclose(taken(one[0][name]), value, rtol=2e-4, atol=2e-5)


CHECK = b"""<!doctype html><iframe src="/demo/index.html" width="800" height="900"></iframe><script type="module">
const frame = document.querySelector("iframe");
await new Promise((loaded) => (frame.onload = loaded));
const page = frame.contentDocument, at = (id) => page.getElementById(id), told = [];
for (let k = 0; at("status").textContent && k < 200; k++) await new Promise((go) => setTimeout(go, 50));
const first = (id) => at(id).firstElementChild?.textContent;
for (const text of TEXTS) {
  at("text").value = text;
  at("text").dispatchEvent(new Event("input"));
  told.push(first("language"));
}
const context = at("canvas").getContext("2d");
context.fillStyle = "black";
context.arc(16, 16, 10, 0, 7);
context.fill();
at("canvas").toBlob(async (blob) => {
  const files = new DataTransfer();
  files.items.add(new File([blob], "circle.png", { type: "image/png" }));
  at("clear").click();
  const blank = first("shape");
  at("file").files = files.files;
  at("file").dispatchEvent(new Event("change"));
  for (let k = 0; first("shape") === blank && k < 100; k++) await new Promise((go) => setTimeout(go, 50));
  told.push(first("shape"), at("status").textContent);
  await fetch("/answers", { method: "POST", body: JSON.stringify(told) });
});
</script>"""
SENTENCES = {
    "In welcher Sprache ist dieser Satz geschrieben?": "German",
    "What language is this sentence written in?": "English",
    "Nos vemos otra vez ma\u00f1ana": "Spanish",
    "Dans quelle langue cette phrase est-elle \u00e9crite ?": "French",
}


def test_the_demo(tmp_path: Path) -> None:
    """It takes a text, and a picture from a file."""
    make = runpy.run_path(str(FOLDER / "demo" / "make.py"))
    make["main"](tmp_path)
    check = CHECK.replace(b"TEXTS", json.dumps(list(SENTENCES)).encode())
    files = {f"/demo/{name}": (tmp_path / name).read_bytes() for name in ("shapes.wasm", "languages.wasm")}
    with served({**files, "/check.html": check}, ISOLATED) as (url, told), opened(f"{url}/check.html"):
        found = told.get(timeout=60)
    assert [text.split()[0] for text in found[:-1]] == [*SENTENCES.values(), "circle"]
    assert found[-1] == ""
