/** Plans of several steps, branches and loops: weft.js imports this for models that have some. */

import { count, dimension, learn, refuse, typed } from "./weft.js";

const truth = ({ data }) => (data.length === 1 ? !!data[0] : refuse(`a condition has ${data.length} elements`));

/** The k-th slice of a tensor along an axis. */
function slice({ data, shape, dtype }, axis, k) {
  const inner = count(shape.slice(axis + 1)), outer = count(shape.slice(0, axis)), n = shape[axis];
  const out = new data.constructor(inner * outer);
  for (let i = 0; i < outer; i++) out.set(data.subarray((i * n + k) * inner, (i * n + k + 1) * inner), i * inner);
  return { data: out, shape: [...shape.slice(0, axis), ...shape.slice(axis + 1)], dtype };
}

/** Tensors of one shape along a new axis; as `empty` where there are none. */
function stack(parts, axis, empty) {
  const { data, shape, dtype } = parts[0] ?? empty, n = parts.length;
  if (parts.some((p) => `${p.shape}` !== `${shape}`)) refuse("a loop collects results of different sizes");
  const inner = count(shape.slice(axis)), outer = count(shape.slice(0, axis)), out = new data.constructor(n * inner * outer);
  parts.forEach((p, k) => {
    for (let i = 0; i < outer; i++) out.set(p.data.subarray(i * inner, (i + 1) * inner), (i * n + k) * inner);
  });
  return { data: out, shape: [...shape.slice(0, axis), n, ...shape.slice(axis)], dtype };
}

const host = {
  Sizes: ([{ shape }]) => [{ data: BigInt64Array.from(shape, BigInt), shape: [shape.length], dtype: "int64" }],
  WithSizes: (values) => values,
};

/**
 * What runs the plan of a manifest: a function from values to results.
 *
 * @param segment from a native step, its inputs and outputs to a function from values to results.
 * @param constant from a name to its tensor.
 */
export function prepare({ name: model, names, plans, ...main }, segment, constant) {
  const run = [];

  const kinds = {
    native: (s, of) => segment(s, of(s.inputs), of(s.outputs)),
    host: (s) => host[s.function] ?? refuse(`'${model}' needs ${s.function}, which runs where Python is`),
    if({ then, orelse }) {
      const n = plans[then].inputs.length;
      return ([condition, ...values]) => (truth(condition) ? run[then](values.slice(0, n)) : run[orelse](values.slice(n)));
    },
    loop,
  };

  function loop(step) {
    const rows = plans[step.body].outputs.slice(step.tests + step.carried), axes = step.item_axes;
    if ([...axes, ...step.result_axes].some((axis) => axis < 0)) refuse(`'${model}' has a loop over sequences, which runs where Python is`);
    return ([trips, condition, ...values], symbols) => {
      let carried = values.splice(0, step.carried), going = !condition || truth(condition);
      const items = values.splice(0, axes.length), lengths = items.map((x, i) => x.shape[axes[i]]), found = rows.map(() => []);
      if (new Set(lengths).size > 1) refuse(`a loop goes over items of different numbers: ${lengths}`);
      if (trips && trips.data.length !== 1) refuse(`a loop takes one number of iterations, got ${trips.data.length}`);
      const most = Math.min(...lengths, trips ? Number(trips.data[0]) : Infinity);
      for (let k = 0; going && k < most; k++) {
        const at = items.map((x, i) => slice(x, axes[i], step.item_backward[i] ? lengths[i] - 1 - k : k));
        const index = { data: BigInt64Array.of(BigInt(k)), shape: [], dtype: "int64" };
        const given = run[step.body]([index, ...carried, ...at, ...values]);
        if (step.tests) going = truth(given.shift());
        carried = given.splice(0, step.carried);
        given.forEach((value, i) => found[i].push(value));
      }
      return carried.concat(
        rows.map(({ dtype, shape }, i) => {
          const empty = { data: new (typed(dtype)[2])(0), shape: shape.map((d) => dimension(d, symbols) ?? 0), dtype };
          return stack(step.result_backward[i] ? found[i].reverse() : found[i], step.result_axes[i], empty);
        }),
      );
    };
  }

  for (const { inputs, outputs, values, steps, symbols: said } of [...plans, main]) {
    const infos = Object.fromEntries([...inputs, ...values, ...outputs].map((i) => [i.name, i]));
    const of = (all) => all.map((n) => infos[n]);
    const runs = steps.map((s) => (kinds[s.kind] ?? (() => refuse(`'${model}' has a step of kind ${s.kind}, which runs elsewhere`)))(s, of));
    run.push((given) => {
      const known = {}, symbols = {}, value = (n) => (n ? (known[n] ?? constant(n)) : null);
      const learned = (places, results) => {
        places.forEach((n, k) => (known[n] = results[k]));
        learn(symbols, of(places), results);
        for (const { name, value, index } of said) if (known[value]) symbols[names.indexOf(name)] ??= Number(known[value].data[index]);
      };
      learned(inputs.map((i) => i.name), given);
      steps.forEach((s, i) => learned(s.outputs, runs[i](s.inputs.map(value), symbols)));
      return outputs.map((o) => value(o.name));
    });
  }
  return run.at(-1);
}
