// Runs models and prints what they give, for tests: a job on standard input, answers on standard output, both JSON.
//   { model: path, calls: [{ name: { dtype, shape, data: base64 } }], damage?: { count, seed } }
import { readFile } from "node:fs/promises";
import { load, WeftError } from "../weft.js";
import { answers } from "./job.mjs";

let text = "";
for await (const chunk of process.stdin) text += chunk;
const job = JSON.parse(text), bytes = await readFile(job.model);

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
console.log(JSON.stringify({ answers: await answers(job, bytes), seen }));
