"""A .cfg and its weights as a graph. The .cfg is `[section]` lines, each with `key=value` lines below it; whitespace
means nothing, # and ; begin comments."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from weft.errors import FrontendError, UnsupportedError
from weft.graph.nodes import Graph, GraphBuilder
from weft_darknet.kinds import LAYERS, RECURRENT
from weft_darknet.layers import ACTIVATIONS, BYTES, LARGEST, Weights
from weft_darknet.plugin import DarknetOptions
from weft_darknet.recurrent import STATE, Recurrent

Problems: TypeAlias = list[tuple[type[FrontendError], str]]
# Keys that matter to training, or to how boxes are made of what a detection layer gives.
TRAINING = """absolute anchors angle assisted_excitation beta1 beta_nms bias_match burnin_update class_scale classfix clip cls_normalizer coord_scale
    counters_per_class delta_normalizer dets_for_show dets_for_track dont_update dot dropblock dropblock_size_abs dropblock_size_rel embedding_layer
    focal_loss grad_centr ignore_thresh iou_loss iou_normalizer iou_thresh jitter label_smooth_eps learning_rate log map mask_scale max max_delta nms_kind
    noloss noobject_scale obj_normalizer object_scale objectness_smooth onlyforward probability random ratio rescore resize scale show_details sim_thresh sqrt
    stopbackward stream thresh time_normalizer track_ciou_norm track_history_size train_only_bn truth truth_thresh type uc_normalizer wait_stream""".split()  # noqa: E501, SIM905
# Keys of which only 0 is supported, which is off.
SWITCHES = {
    "antialiasing",
    "background",
    "bin_output",
    "binary",
    "bottleneck",
    "dontload",
    "dontloadscales",
    "flipped",
    "maxpool_depth",
    "rotate",
    "shortcut",
    "spatial",
    "sway",
    "xnor",
}


class Section(NamedTuple):
    """`[kind]` at a line, and (value, line) by key."""

    kind: str
    line: int
    values: dict[str, tuple[str, int]]


def read_sections(text: str, problems: Problems) -> list[Section]:
    sections: list[Section] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = "".join(raw.split())
        key, _, value = line.partition("#")[0].partition("=")
        if line.startswith("[") and "]" in line:
            sections.append(Section(line[1 : line.index("]")], number, {}))
        elif line and line[0] not in "#;":
            if not (sections and key and value):
                problems.append((FrontendError, f"line {number}: '{raw.strip()[:60]}' is no key=value of a section"))
            elif (
                sections[-1].values.setdefault(key, (value, number))[0] != value and len(sections) > 1
            ):  # in [net] the first counts, as in Darknet
                problems.append(
                    (
                        FrontendError,
                        f"line {number}: {key}={value[:60]}, and another {key} in line {sections[-1].values[key][1]}",
                    )
                )
    if len(sections) < 2 or sections[0].kind not in ("net", "network"):
        problems.append((FrontendError, "it is not a section [net] and sections of layers"))
    return sections


def read_options(section: Section, build: Any, problems: Problems) -> dict[str, Any]:
    """The arguments that the section gives `build`, whose parameters are the keys (_ is behind what Python reserves),
    their annotations what they take."""
    known, options = {name.rstrip("_"): p for name, p in inspect.signature(build).parameters.items()}, {}
    for key, (text, line) in section.values.items():
        place = f"line {line}: {key}={text[:60]} in [{section.kind}]"
        if key in known:
            options[known[key].name], expected = _value(text, known[key].annotation)
            if expected:
                problems.append((FrontendError, f"{place}: expected {expected}"))
            elif key == "activation" and text not in ACTIVATIONS:
                problems.append((UnsupportedError, f"{place}; functions: {', '.join(ACTIVATIONS)}"))
        elif section.kind not in ("net", "network") and key not in TRAINING and (key not in SWITCHES or text != "0"):
            problems.append((UnsupportedError, place))
    return options


def _value(text: str, kind: str) -> tuple[Any, str]:
    """The value, and what was expected if it is not that: a str, a float, a Size (from 1), a Count (from 0), or Ints
    with commas between."""
    if kind == "str":
        return text, ""
    try:
        numbers = (
            [float(text)]
            if kind == "float"
            else [int(part) for part in (text.split(",") if kind == "Ints" else [text])]
        )
    except ValueError:
        numbers = [LARGEST + 1]
    least = {"Size": 1, "Count": 0}.get(kind.split()[0], -LARGEST)
    what = {"float": "a number", "Ints": "integers"}.get(kind, "an integer")
    return numbers if kind == "Ints" else numbers[0], (
        "" if all(least <= k <= LARGEST for k in numbers) else f"{what} from {least} to {LARGEST}"
    )


def load_network(source: Any, given: DarknetOptions) -> Graph:
    """See `weft_darknet.plugin.load`."""
    if not isinstance(source, (Path, *BYTES)):
        raise FrontendError(
            f"cannot read a Darknet network from a {type(source).__name__}",
            hint="give the path of a .cfg, or its bytes",
        )
    try:
        text = (source.read_bytes() if isinstance(source, Path) else bytes(source)).decode("utf-8-sig", "replace")
    except OSError as error:
        raise FrontendError(f"cannot read '{source!s}'", why=error.strerror) from error
    file: str = source.name if isinstance(source, Path) else "these bytes"
    problems, layers = Problems(), list[tuple[Section, dict[str, Any]]]()
    sections = read_sections(text, problems)
    for k, section in enumerate(sections):
        if section.kind in LAYERS and (k == 0) == (section.kind in ("net", "network")):
            layers.append((section, read_options(section, LAYERS[section.kind], problems)))
        else:
            problems.append((UnsupportedError, f"line {section.line}: [{section.kind}]"))
        if section.kind in RECURRENT and given.state is None:
            problems.append((UnsupportedError, f"line {section.line}: [{section.kind}] keeps a state between calls"))
    for kind, what, hint in (
        (FrontendError, "is not a Darknet network", "is it complete?"),
        (UnsupportedError, "uses what is not supported", "leave it out"),
    ):
        if lines := [line for error, line in problems if error is kind]:
            raise kind(
                f"'{file}' {what}",
                where="\n".join(lines),
                hint=STATE if any("keeps a state" in line for line in lines) else hint,
            )
    if given.width is not None or given.height is not None:
        layers[0][1].update(
            {"inputs": 0} | {key: size for key in ("width", "height") if (size := getattr(given, key)) is not None}
        )
    weights = source.with_suffix(".weights") if given.weights is None and isinstance(source, Path) else given.weights
    if weights is None:
        raise FrontendError(
            "a network of bytes has no weights beside it", hint="name them: weft.load(model, weights=…)"
        )
    return build(source.stem if isinstance(source, Path) else "darknet", file, layers, Weights(weights), given.state)


def build(
    name: str, file: str, layers: list[tuple[Section, dict[str, Any]]], weights: Weights, kept: str | None
) -> Graph:
    """The outputs are those of the detection layers, or that of the last layer but [cost]."""
    state = Recurrent(GraphBuilder(name), weights, state=kept)
    for index, (section, options) in enumerate(layers, -1):
        weights.place = f"{file}, line {section.line}: " + (
            f"layer {index}, [{section.kind}]" if index >= 0 else "[net]"
        )
        with state.builder.named(f"{section.kind}_{index}"):
            state.step(section.kind, LAYERS[section.kind], options)
    if weights.at != len(weights.data):
        raise FrontendError(
            f"{weights.name} does not end with the network",
            why=f"{weights.at} bytes are wanted, {len(weights.data)} are there",
        )
    kinds = [section.kind for section, _ in layers[1:]]
    detections = [k for k, kind in enumerate(kinds) if kind in ("yolo", "region")]
    for k in detections or [k for k, kind in enumerate(kinds) if kind != "cost"][-1:] or [0]:
        state.builder.output(state.done[k], f"{kinds[k]}_{k}")
    for name, value in state.after:
        state.builder.output(value, name)
    return state.builder.build()
