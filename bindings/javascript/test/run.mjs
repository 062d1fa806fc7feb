// Runs models and prints what they give, for tests: a job on standard input, answers on standard output, both JSON.
//   { model: path, calls: [{ name: { dtype, shape, data: base64 } }], damage?: { count, seed } }
import { readFile } from "node:fs/promises";
import { load, WeftError } from "../weft.js";

let text = "";
for await (const chunk of process.stdin) text += chunk;
const job = JSON.parse(text), bytes = await readFile(job.model), answers = [];
const said = ({ message, where, why, hint }) => ({ error: { message, where, why, hint } });

/** The class of arrays that hold a dtype's elements, or words of their size. */
function elements(dtype) {
  const [, kind, digits = 8] = /^([a-z]+)(\d+)?/.exec(dtype), float = kind === "float" && digits > 16;
  return globalThis[`${digits > 32 && !float ? "Big" : ""}${float ? "Float" : kind === "int" ? "Int" : "Uint"}${Math.max(8, digits)}Array`];
}
const array = ({ dtype, shape, data }) => {
  const raw = Buffer.from(data, "base64"), of = elements(dtype);
  return { data: new of(raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.length)), shape };
};
const plain = ({ dtype, shape, data }) => ({
  dtype, shape, data: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64"),
});
const mapped = (values, f) => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, f(value)]));

try {
  const model = await load(bytes, { threads: job.threads });
  answers.push({ name: model.name, inputs: model.inputs, outputs: model.outputs, threads: model.threads, oneThread: model.oneThread });
  for (const call of job.calls ?? [])
    try {
      answers.push(mapped(model.run(mapped(call, array)), plain));
    } catch (error) {
      if (!(error instanceof WeftError)) throw error;
      answers.push(said(error));
    }
} catch (error) {
  if (!(error instanceof WeftError)) throw error;
  answers.push(said(error));
}

// Copies with changed and missing bytes: each is refused, or is a model.
let state = job.damage?.seed ?? 1;
const draw = (n) => (state = (state * 48271) % 2147483647) % n;
const seen = {};
for (let k = 0; k < (job.damage?.count ?? 0); k++) {
  let copy = new Uint8Array(bytes);
  for (let times = 1 + draw(3); times--; ) copy[draw(draw(2) ? copy.length : Math.min(copy.length, 4096))] = draw(256);
  if (draw(4) === 0) copy = copy.slice(0, draw(copy.length));
  try {
    await load(copy);
    seen.loaded = (seen.loaded ?? 0) + 1;
  } catch (error) {
    if (!(error instanceof WeftError)) throw error;
    seen.refused = (seen.refused ?? 0) + 1;
  }
}
console.log(JSON.stringify({ answers, seen }));
