// One model in node, run in turns by Weft and onnxruntime-web: a job on standard input, figures on standard output, both
// JSON. See benchmarks/web.py.
//   { weft: [{ label, file }], runtime: URL of weft.js, ort?: { file, module }, inputs: { name: { dtype, shape, data } },
//     seconds, turn }
// CPU time is that of the whole process, so that it counts the engine's compiler and collector for both alike.
import { openAsBlob } from "node:fs";
import { readFile } from "node:fs/promises";

let text = "";
for await (const chunk of process.stdin) text += chunk;
const job = JSON.parse(text);
const cpu = () => Object.values(process.cpuUsage()).reduce((a, b) => a + b) / 1e6;

const { load } = await import(job.runtime);
const arrays = Object.entries(job.inputs).map(([name, { dtype, shape, data }]) => {
  const raw = Buffer.from(data, "base64"), of = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array }[dtype];
  return [name, dtype, new of(raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.length)), shape];
});

/** Engines, each { label, run }: run gives the first output's elements. */
const engines = [];
for (const { label, file } of job.weft) {
  const begun = performance.now(), model = await load(await openAsBlob(file)), loaded = performance.now() - begun;
  const given = Object.fromEntries(arrays.map(([name, , data, shape]) => [name, { data, shape }])), [first] = model.outputs;
  engines.push({ label, loaded, run: () => model.run(given)[first.name].data });
}
if (job.ort) {
  const begun = performance.now(), ort = await import(job.ort.module);
  ort.env.wasm.numThreads = 1;
  const bytes = await readFile(job.ort.file), session = await ort.InferenceSession.create(bytes, { graphOptimizationLevel: "all" });
  const loaded = performance.now() - begun, version = ort.env.versions.web ?? ort.env.versions.common;
  const given = Object.fromEntries(arrays.map(([name, dtype, data, shape]) => [name, new ort.Tensor(dtype, data, shape)]));
  engines.push({ label: "onnxruntime-web", version, loaded, run: async () => (await session.run(given))[session.outputNames[0]].data });
}

const figures = engines.map(({ label, version, loaded }) => ({ label, version, loaded, cpu: [], wall: [] }));
const answers = [];
for (const [k, { run }] of engines.entries()) {
  answers.push(Float32Array.from(await run()));
  // The engine compiles what runs often once more, in the background.
  for (const end = performance.now() + 1000 * job.seconds / 5; performance.now() < end; ) await run();
  const begun = performance.now();
  await run();
  figures[k].calls = Math.max(1, Math.ceil(job.turn / ((performance.now() - begun) / 1000)));
}
const end = performance.now() + 1000 * job.seconds;
for (let round = 0; performance.now() < end || round < 5; round++)
  for (let k = 0; k < engines.length; k++) {
    const at = (k + round) % engines.length, { calls } = figures[at], { run } = engines[at];
    await run(); // its data are in the caches again
    const started = performance.now(), used = cpu();
    for (let i = 0; i < calls; i++) await run();
    figures[at].cpu.push((cpu() - used) / calls);
    figures[at].wall.push((performance.now() - started) / 1000 / calls);
  }
const scale = answers[0].reduce((most, v) => Math.max(most, Math.abs(v)), 0);
figures.forEach((f, k) => {
  f.difference = answers[0].reduce((most, v, i) => Math.max(most, Math.abs(v - answers[k][i])), 0) / scale;
  if (answers[k].length !== answers[0].length || Number.isNaN(f.difference)) f.difference = Infinity;
});
console.log(JSON.stringify({ node: process.version, figures }));
