"""Programs as lowering makes them, for schedule tests: intermediates allocated around perfect nests, one block each."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.loop.nodes import Program, int_const
from weft.loop.parser import parse_program
from weft_interpreter.interpret import interpret


def nest(loops: dict[str, Any], block: str) -> str:
    return "".join(f"for {v} in {n} {{ " for v, n in loops.items()) + block + " }" * len(loops)


def conv(H: int = 3, W: Any = 5, co: int = 2, ci: int = 4, c: int = 2) -> Program:
    """Blocked conv2d, bias, relu."""
    y = f"[n, {co}, {H}, {W}, {ci}]"
    dims = "n, W" if W == "W" else "n"

    def at(prefix: str, k: str) -> str:
        names = {"n": "n", "co": co, "h": H, "w": W, "ci": ci}
        return ", ".join(f"v{prefix}{name}: {extent} = {name}{k}" for name, extent in names.items())

    def around(k: str) -> dict[str, Any]:
        return {f"n{k}": "n", f"co{k}": co, f"h{k}": H, f"w{k}": W, f"ci{k}": ci}

    acc, biased = "acc[vn, vco, vh, vw, vci]", "biased[van, vaco, vah, vaw, vaci]"
    sums = f"vric: reduce {c} = ric, vkh: reduce 3 = kh, vkw: reduce 3 = kw, vrii: reduce {ci} = rii"
    product = f"""block conv({at("", "0")}, {sums}) @ op="Conv" {{
          init {{ {acc} = 0.0f32 }}
          {acc} = {acc} + x[vn, vric, vh + vkh, vw + vkw, vrii]*wt[vco, vric, vkh, vkw, vrii, vci]
        }}"""
    added = f"block bias({at('a', '1')}) {{ {biased} = acc[van, vaco, vah, vaw, vaci] + b[vaco, vaci] }}"
    result = "y[vbn, vbco, vbh, vbw, vbci] = max(biased[vbn, vbco, vbh, vbw, vbci], 0.0f32)"
    activated = f"block relu({at('b', '2')}) {{ {result} }}"
    operands = f"x: float32[n, {c}, {H} + 2, {W} + 2, {ci}], wt: float32[{co}, {c}, 3, 3, {ci}, {ci}]"
    text = f"""program conv({operands}, b: float32[{co}, {ci}]) -> (y: float32{y}) dims({dims}) {{
      allocate acc: float32{y}
      allocate biased: float32{y}
      {nest({**around("0"), "ric": c, "kh": 3, "kw": 3, "rii": ci}, product)}
      {nest(around("1"), added)}
      {nest(around("2"), activated)}
    }}"""
    return parse_program(text)


def matmul(m: Any = 7, n: Any = 9, k: Any = 5) -> Program:
    """a packed operand B, the product, an epilogue."""
    dims = ", ".join(str(d) for d in (m, n, k) if isinstance(d, str))
    dims = f" dims({dims})" if dims else ""
    text = f"""program matmul(A: float32[{m}, {k}], B: float32[{k}, {n}], c: float32[{n}]) -> (Y: float32[{m}, {n}]){dims} {{
      allocate P: float32[({n} + 3)//4, {k}, 4]
      allocate C: float32[{m}, {n}]
      for po in ({n} + 3)//4 {{ for pk in {k} {{ for pi in 4 {{
        block pack(vpo: ({n} + 3)//4 = po, vpk: {k} = pk, vpi: 4 = pi) {{ P[vpo, vpk, vpi] = select(vpo*4 + vpi < {n}, B[vpk, vpo*4 + vpi], 0.0f32) }}
      }} }} }}
      for i in {m} {{ for j in {n} {{ for k0 in {k} {{
        block matmul(vi: {m} = i, vj: {n} = j, vk: reduce {k} = k0) @ op="MatMul" {{
          init {{ C[vi, vj] = 0.0f32 }}
          C[vi, vj] = C[vi, vj] + A[vi, vk]*P[vj//4, vk, vj%4]
        }}
      }} }} }}
      for i1 in {m} {{ for j1 in {n} {{ block add(ai: {m} = i1, aj: {n} = j1) {{ Y[ai, aj] = C[ai, aj] + c[aj] }} }} }}
    }}"""  # noqa: E501
    return parse_program(text)


def softmax(r: Any = 4, c: Any = 6) -> Program:
    """Row maximum, exponentials, row sum, quotient."""
    dims = ", ".join(str(d) for d in (r, c) if isinstance(d, str))
    dims = f" dims({dims})" if dims else ""
    text = f"""program softmax(X: float32[{r}, {c}]) -> (Y: float32[{r}, {c}]){dims} {{
      allocate M: float32[{r}]
      allocate E: float32[{r}, {c}]
      allocate S: float32[{r}]
      for i0 in {r} {{ for k0 in {c} {{
        block max(mi: {r} = i0, mk: reduce {c} = k0) {{ init {{ M[mi] = -3.0e38f32 }} M[mi] = max(M[mi], X[mi, mk]) }}
      }} }}
      for i1 in {r} {{ for j1 in {c} {{ block exp(ei: {r} = i1, ej: {c} = j1) {{ E[ei, ej] = exp(X[ei, ej] - M[ei]) }} }} }}
      for i2 in {r} {{ for k2 in {c} {{
        block sum(si: {r} = i2, sk: reduce {c} = k2) {{ init {{ S[si] = 0.0f32 }} S[si] = S[si] + E[si, sk] }}
      }} }}
      for i3 in {r} {{ for j3 in {c} {{ block div(di: {r} = i3, dj: {c} = j3) {{ Y[di, dj] = E[di, dj]/S[di] }} }} }}
    }}"""  # noqa: E501
    return parse_program(text)


def stencil(n: Any = 9) -> Program:
    """Two stages of neighbours, the second padded by a select."""
    dims = f" dims({n})" if isinstance(n, str) else ""
    text = f"""program stencil(x: float32[{n} + 2, 6]) -> (y: float32[{n}, 6], z: float32[{n}]){dims} {{
      allocate a: float32[{n}, 6]
      for i in {n} {{ for j in 6 {{ block A(ai: {n} = i, aj: 6 = j) {{ a[ai, aj] = x[ai, aj] + x[ai + 2, aj] }} }} }}
      for r in {n} {{ for c in 6 {{
        block B(br: {n} = r, bc: 6 = c) {{ y[br, bc] = select(0 < bc, a[br, bc - 1], 0.0f32) + select(bc < 5, a[br, bc + 1], 0.0f32) }}
      }} }}
      for s in {n} {{ for t in 6 {{ block C(cs: {n} = s, ct: reduce 6 = t) {{ init {{ z[cs] = 0.0f32 }} z[cs] = z[cs] + a[cs, ct] }} }} }}
    }}"""  # noqa: E501
    return parse_program(text)


def argmax(r: Any = 4, c: Any = 6) -> Program:
    """A reduction of pairs, and a use of the index."""
    dims = ", ".join(str(d) for d in (r, c) if isinstance(d, str))
    dims = f" dims({dims})" if dims else ""
    text = f"""program argmax(X: float32[{r}, {c}]) -> (Y: int64[{r}]){dims} {{
      allocate V: float32[{r}]
      allocate I: int64[{r}]
      for i in {r} {{ for k in {c} {{
        block best(vi: {r} = i, vk: reduce {c} = k) {{
          init {{ V[vi] = -1000.0f32 I[vi] = -1 }}
          let v: float32 = select(V[vi] < X[vi, vk], X[vi, vk], V[vi])
          let w: int64 = select(V[vi] < X[vi, vk], vk, I[vi])
          V[vi] = v
          I[vi] = w
        }}
      }} }}
      for i1 in {r} {{ block take(ti: {r} = i1) {{ Y[ti] = I[ti]*2 }} }}
    }}"""
    return parse_program(text)


PROGRAMS = {
    "conv": lambda: conv(2, 5, 2, 2, 2),
    "conv_symbolic": lambda: conv(2, "W", 1, 2, 1),
    "matmul": matmul,
    "matmul_symbolic": lambda: matmul("m", "n", 3),
    "softmax": softmax,
    "softmax_symbolic": lambda: softmax("m", "n"),
    "stencil": stencil,
    "stencil_symbolic": lambda: stencil("n"),
    "argmax": argmax,
    "argmax_symbolic": lambda: argmax("m", "n"),
}


def run(
    program: Program, dims: dict[str, int] | None = None, seed: int = 0, shuffle: int | None = None
) -> dict[str, Any]:
    """Outputs on small random whole numbers."""
    from weft.expr.evaluate import evaluate

    sizes = {d.name: (dims or {}).get(d.name, 5) for d in program.dims}
    rng = np.random.default_rng(seed)
    arrays = {}
    for b in program.inputs:
        shape = tuple(int(evaluate(d, sizes)) if int_const(d) is None else int(int_const(d) or 0) for d in b.shape)
        arrays[b.name] = rng.integers(-4, 5, shape).astype(b.dtype.numpy)
    return interpret(program, arrays, sizes, shuffle_seed=shuffle)


def same(before: Program, after: Program, dims: dict[str, int] | None = None) -> None:
    """Both mean the same."""
    wanted, got = run(before, dims), run(after, dims, shuffle=1)
    assert wanted.keys() == got.keys()
    for name in wanted:
        assert np.isfinite(np.asarray(wanted[name], np.float64)).all(), "the test program computes nonsense"
        np.testing.assert_allclose(
            np.asarray(got[name], np.float64),
            np.asarray(wanted[name], np.float64),
            rtol=1e-5,
            atol=1e-5,
            err_msg=f"{name}\n{after}",
        )
