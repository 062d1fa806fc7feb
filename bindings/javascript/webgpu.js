/**
 * Steps of models that are compiled for WebGPU: weft.js loads this module with a model that has such. What they look like
 * is in weft_llvm/exports/webgpu.py.
 *
 * A value is { data, shape, dtype } on the host; on the device it has `there`. That is a slice { buffer, offset, size }, as
 * are the places of all buffers. They begin at multiples of ROUND bytes, and GPUBuffers end at one: slices that do not
 * overlap do not overlap either when they are bound with so many bytes.
 */

const ROUND = 256, MOST_GROUPS = 65535, KEPT = 64, ARENA = 0, STAGING = 1;
const LARGEST = 1 << 30; // bytes that a kernel binds: it counts elements in 32 bits, with room beyond borders
const SMALLER = "run smaller inputs", AGAIN = "compile the model again", LOWER = "compile it with lower -buffers, -threads or -shared";
const up = (n, to = ROUND) => Math.ceil((n || 1) / to) * to;

/**
 * Opens the GPU for a model: compiles its kernels and uploads its constants.
 *
 * @param model, bytes what describes the model, and its file.
 * @param device a GPUDevice, or none for one of its own.
 * @param formula, count, typed, WeftError of weft.js.
 * @returns { kinds, queued, close }: steps by kind, as weft.js has them; what makes a function of values one whose calls
 *   wait for one another.
 */
export async function open(model, bytes, device, formula, count, typed, WeftError) {
  const { name, gpu: { kernels, constants, limits, features } } = model, own = !device, memories = new Map(), programs = new Map();
  let pending = [], last = Promise.resolve(), stop, over;

  const failure = (what, why, hint, where = name) => new WeftError(what, { where, why, hint });
  const refuse = (...said) => {
    throw failure(...said);
  };
  const number = (code, symbols) => {
    const n = formula(code, symbols);
    return n === n ? n : refuse("a size is not known", code, AGAIN);
  };

  // -- the device

  const fits = (of) => {
    for (const k in limits) if (!(of.limits[k] >= limits[k])) refuse("the GPU is too small", `${k} is ${of.limits[k]}, ${limits[k]} are needed`, LOWER);
    for (const f of features) if (!of.features.has(f)) refuse(`the GPU lacks ${f}`, "kernels need it");
  };
  if (own) {
    const gpu = globalThis.navigator?.gpu ?? refuse("this engine has no WebGPU", "navigator.gpu is missing", "pages have it from https: and localhost");
    const adapter = (await gpu.requestAdapter()) ?? refuse("no GPU is offered here", "", "compile it without webgpu");
    fits(adapter);
    const requiredLimits = Object.fromEntries(Object.keys(limits).map((k) => [k, adapter.limits[k]]));
    device = await adapter.requestDevice({ requiredFeatures: features, requiredLimits });
  }
  fits(device);
  const { queue } = device, { STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage, EVERY = STORAGE | COPY_SRC | COPY_DST;

  /** Ends the run that waits, and all later ones. */
  const end = (error) => {
    over ??= error;
    stop?.(over);
  };
  device.lost.then(({ message, reason }) => end(failure("the GPU was lost", message || reason, "load the model again")));

  /** Gives the device work. `settled` says what was wrong with it: nothing else may come between a scope and its end. */
  function guarded(work) {
    device.pushErrorScope("validation");
    device.pushErrorScope("out-of-memory");
    try {
      return work();
    } finally {
      for (let k = 2; k--; ) pending.push(device.popErrorScope().catch((error) => error));
    }
  }
  async function settled() {
    const errors = pending;
    pending = [];
    const error = (await Promise.all(errors)).find((e) => e);
    if (!error) return;
    if (error instanceof GPUOutOfMemoryError) refuse("the GPU has too little memory", error.message, SMALLER);
    refuse("the GPU refuses a step", error.message);
  }

  // -- memory

  /** The buffer of a key, with room for so many bytes. */
  function memory(key, size, usage = EVERY) {
    const old = memories.get(key), most = device.limits.maxBufferSize;
    if (old?.size >= size) return old;
    if (size > most) refuse(`no memory for ${size} bytes`, `buffers of this GPU have ${most} at most`, SMALLER);
    if (old) {
      forget();
      old.destroy();
    }
    const buffer = guarded(() => device.createBuffer({ size: up(size), usage }));
    memories.set(key, buffer);
    return buffer;
  }
  const slice = (key, size) => ({ buffer: memory(key, size), offset: 0, size });

  /** Writes an array to a slice. The GPU takes whole words. */
  function write(to, { buffer, byteOffset, byteLength }) {
    const rest = byteLength % 4, whole = byteLength - rest;
    guarded(() => {
      queue.writeBuffer(to.buffer, 0, buffer, byteOffset, whole);
      if (rest) queue.writeBuffer(to.buffer, whole, Uint8Array.of(...new Uint8Array(buffer, byteOffset + whole, rest), 0, 0, 0), 0, 4);
    });
    return to;
  }
  /** Frees what is prepared: it is for the memories of now. */
  function forget() {
    for (const { held } of programs.values()) held.forEach((b) => b.destroy());
    programs.clear();
  }
  function drop() {
    forget();
    memories.forEach((b) => b.destroy());
    memories.clear();
  }

  // -- kernels

  /**
   * How the buffers of a launch are bound: `same[k]` is the number by which buffer k is, `kept` are slices with their
   * numbers, `copies` are made before. What is bound must not overlap. Only inputs may be copied, and they come first: so
   * the last buffers choose first.
   */
  function bound(types, slices, own) {
    const same = slices.map((_, k) => k), kept = [], copies = [];
    for (let k = slices.length; k--; ) {
      const a = slices[k], met = kept.filter((b) => b.buffer === a.buffer && b.offset < a.offset + a.size && a.offset < b.offset + b.size), [b] = met;
      if (!a.size || met[1] || (b && (b.offset !== a.offset || types[b.k] !== types[k]))) {
        const to = { ...own(a.size), k };
        kept.push(to);
        if (a.size) copies.push([a, to]);
      } else if (b) {
        same.forEach((j, i) => (same[i] = j === b.k ? k : j));
        b.k = k;
        b.size = Math.max(a.size, b.size);
      } else kept.push({ ...a, k });
    }
    return { same, kept, copies, back: [], words: [] };
  }

  /** As `bound`, of a kernel that takes one buffer: ranges of memories, one after another if there are several. */
  function joined(slices, own) {
    const ranges = new Map();
    for (const a of slices)
      if (a.size) {
        const r = ranges.get(a.buffer) ?? { ...a, end: 0 };
        r.offset = Math.min(r.offset, a.offset);
        r.end = Math.max(r.end, a.offset + a.size);
        r.size = r.end - r.offset;
        ranges.set(a.buffer, r);
      }
    const all = [...ranges.values()];
    for (const r of all) r.to = all[1] ? own(r.size) : r;
    const { to: first } = all[0] ?? { to: own(0) }, { to: end } = all.at(-1) ?? { to: first };
    const copies = all.filter((r) => r.to !== r).map((r) => [r, r.to]), back = copies.filter(([r]) => !r.fixed).map(([r, to]) => [to, r]);
    const words = slices.map(({ buffer, offset, size }) => size && (offset - ranges.get(buffer).offset + ranges.get(buffer).to.offset - first.offset) / 4);
    return { same: [0], kept: [{ ...first, k: 0, size: end.offset + end.size - first.offset }], copies, back, words };
  }

  /** How a launch finds its buffers; and `made`, a promise of the kernel's pipeline for that and of its layout. */
  function placed(kernel, slices, own) {
    const how = kernel.types ? bound(kernel.types, slices, own) : joined(slices, own);
    return { ...how, made: ((kernel.made ??= {})[how.same] ??= compiled(kernel, how.same)) };
  }
  async function compiled({ name: label, symbol, text: code, sized }, same) {
    same.forEach((i, j) => {
      if (i !== j) code = code.replace(RegExp(`^@group.0. @binding.${j}. .*`, "m"), "").replace(RegExp(`\\bweft_b${j}\\b`, "g"), `weft_b${i}`);
    });
    const entry = (binding, type) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } });
    const entries = [...new Set(same)].map((i) => entry(i, "storage"));
    if (sized) entries.push(entry(same.length, "uniform"));
    const [group, layout, module] = guarded(() => {
      const made = device.createBindGroupLayout({ label, entries });
      return [made, device.createPipelineLayout({ bindGroupLayouts: [made] }), device.createShaderModule({ label, code })];
    });
    try {
      return [await device.createComputePipelineAsync({ label, layout, compute: { module, entryPoint: symbol } }), group];
    } catch (error) {
      const wrong = (await module.getCompilationInfo()).messages.find((m) => m.type === "error");
      refuse(`kernel '${label}' does not compile`, wrong ? `line ${wrong.lineNum}: ${wrong.message}` : error.message, AGAIN);
    }
  }

  /** The groups of a launch; none if there is nothing to do. Kernels count what is beyond the axis x along z. */
  function grid(label, launch, dims) {
    const [x, y, z] = launch.grid.map((n) => Math.max(0, number(n, dims))), found = [Math.min(x, MOST_GROUPS), y, z * Math.ceil(x / MOST_GROUPS)];
    if (found.includes(0)) return;
    return Math.max(...found) > MOST_GROUPS ? refuse(`kernel '${label}' has too many groups`, `${x} × ${y} × ${z}`, SMALLER) : found;
  }

  /** The launches of a step for these places. Slices that are `held` are of two buffers, one for copies and one for sizes. */
  async function prepared(step, places, symbols) {
    const program = [], words = [];
    let room = 0;
    const own = (size) => ({ held: 0, offset: (room += up(size)) - up(size), size });
    for (const launch of step.launches) {
      const kernel = kernels[launch.kernel], label = kernel.name, dims = launch.dims.map((d) => number(d, symbols)), groups = grid(label, launch, dims);
      if (!groups) continue;
      const how = placed(kernel, launch.buffers.map((b) => places[b]), own);
      const most = Math.min(LARGEST, device.limits.maxStorageBufferBindingSize), large = how.kept.find((s) => s.size > most);
      if (large) refuse(`kernel '${label}' takes ${large.size} bytes at once`, `${most} are allowed`, SMALLER);
      const sizes = [...launch.words.map((k) => dims[k]), ...how.words], lost = sizes.find((n) => !(n <= LARGEST));
      if (lost) refuse(`a size of kernel '${label}' is ${lost}`, `${LARGEST} is allowed`, SMALLER);
      if (kernel.sized) {
        how.kept.push({ k: how.same.length, held: 1, offset: 4 * words.length, size: 4 * sizes.length });
        words.push(...sizes, ...Array(up(sizes.length, ROUND / 4) - sizes.length).fill(0));
      }
      program.push({ ...how, label, groups });
    }
    const made = await Promise.all(program.map((p) => p.made));
    const held = guarded(() => [[room, EVERY], [4 * words.length, UNIFORM | COPY_DST]].map(([size, usage]) => device.createBuffer({ size: up(size), usage })));
    write({ buffer: held[1] }, Int32Array.from(words));
    const of = (s) => s.buffer ?? held[s.held], copy = ([a, b]) => [of(a), a.offset, of(b), b.offset, up(a.size, 4)];
    guarded(() =>
      program.forEach((p, i) => {
        const entries = p.kept.map((s) => ({ binding: s.k, resource: { buffer: of(s), offset: s.offset, size: up(s.size) } }));
        [p.pipeline] = made[i];
        p.group = device.createBindGroup({ label: p.label, layout: made[i][1], entries });
        p.copies = p.copies.map(copy);
        p.back = p.back.map(copy);
      }),
    );
    return { program, held };
  }

  /** Gives the device one command buffer, which `record` fills. */
  const submit = (record) =>
    guarded(() => {
      const encoder = device.createCommandEncoder();
      record(encoder);
      queue.submit([encoder.finish()]);
    });
  const start = ({ program }) =>
    submit((encoder) => {
      let pass;
      const copy = (all) => {
        if (all[0]) pass = pass?.end();
        for (const one of all) encoder.copyBufferToBuffer(...one);
      };
      for (const { pipeline, group, groups, copies, back } of program) {
        copy(copies);
        pass ??= encoder.beginComputePass();
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(...groups);
        copy(back);
      }
      pass?.end();
    });

  // -- steps

  const kinds = {
    upload: (_, infos) => (values, symbols) =>
      values.map((value, i) => {
        const { data, shape } = value, { name: key, shape: wanted } = infos[i];
        wanted.forEach((d, axis) => {
          const n = formula(d, symbols);
          if (n === n && n !== shape[axis]) refuse(`'${key}' has size ${shape[axis]} on axis ${axis}, expected ${n}`);
        });
        return { ...value, there: write(slice(key, data.byteLength), data) };
      }),
    download: () => async (values) => {
      let total = 0;
      const at = values.map(({ there }) => (total += up(there.size)) - up(there.size)), staging = memory(STAGING, total, MAP_READ | COPY_DST);
      submit((encoder) => values.forEach(({ there }, i) => encoder.copyBufferToBuffer(there.buffer, 0, staging, at[i], up(there.size, 4))));
      await staging.mapAsync(GPUMapMode.READ, 0, total);
      try {
        await settled();
        const all = staging.getMappedRange(0, total);
        return values.map((value, i) => ({ ...value, data: new (typed(value.dtype))(all.slice(at[i], at[i] + value.there.size)) }));
      } finally {
        staging.unmap();
      }
    },
    device: (step, _, outs) => (values, symbols) => {
      for (const { holds, what, hint, args } of step.conditions)
        if (!formula(holds, symbols)) {
          const filled = (text) => text.replace(/\{(\d)\}/g, (_, k) => formula(args[k], symbols));
          refuse(filled(what), "", filled(hint));
        }
      const results = outs.map(({ name: key, dtype, shape: codes }) => {
        const shape = codes.map((d) => number(d, symbols));
        if (shape.some((n) => n < 0)) refuse(`'${key}' would have shape [${shape}]`);
        return { shape, dtype, there: slice(key, count(shape) * typed(dtype).BYTES_PER_ELEMENT) };
      });
      const arena = memory(ARENA, number(step.arena, symbols)), all = [...values, ...results];
      const places = step.places.map((p) => {
        if (!Array.isArray(p)) return typeof p === "number" ? all[p].there : constants[p];
        const [offset, size] = p.map((n) => number(n, symbols));
        return offset + size <= arena.size ? { buffer: arena, offset, size } : refuse("a buffer lies outside of its memory");
      });
      const key = JSON.stringify([step.outputs, symbols]), ready = programs.get(key);
      const run = (made) => (start(made), results);
      if (ready) return run(ready);
      return prepared(step, places, symbols).then((made) => {
        if (programs.size >= KEPT) forget();
        programs.set(key, made);
        return run(made);
      });
    },
  };

  /** A plan's run whose calls wait for one another. A call takes inputs as they are when it comes. */
  const queued = (run) => (given) => {
    const taken = given.map((x) => ({ ...x, data: x.data.slice() }));
    async function once() {
      try {
        const found = await run(taken);
        await settled();
        return found.map(({ data, shape, dtype }) => ({ data, shape, dtype }));
      } catch (error) {
        drop();
        if (!(error instanceof WeftError)) await settled();
        pending = [];
        throw error;
      }
    }
    const wait = (done, failed) => {
      if (over) throw over;
      stop = failed;
      // What is no error of ours is told by what the device says, which may come later.
      once().then(done, (error) => (error instanceof WeftError ? failed(error) : setTimeout(failed, 500, failure("the GPU has ended a run", error.message))));
    };
    return (last = last.catch(() => {}).then(() => new Promise(wait)));
  };

  /** Frees what the model has on the GPU. */
  function close() {
    end(failure("the model is closed", "", "load it again"));
    drop();
    for (const k in constants) constants[k].buffer?.destroy();
    if (own) device.destroy();
  }

  try {
    for (const [k, [begin, end]] of Object.entries(constants)) {
      const size = end - begin, buffer = guarded(() => device.createBuffer({ size: up(size), usage: EVERY }));
      constants[k] = write({ buffer, offset: 0, size, fixed: true }, bytes.subarray(begin, end));
    }
    // What is wrong with a kernel is told now. When sizes are known, more buffers may begin at one place.
    const launches = model.plans.flatMap((p) => p.steps).flatMap((s) => s.launches ?? []), own = (size) => ({ offset: 0, size });
    await Promise.all(launches.map(({ kernel, buffers }) => placed(kernels[kernel], buffers.map((buffer) => ({ buffer, ...own(1) })), own).made));
    await settled();
  } catch (error) {
    close();
    throw error;
  }
  return { kinds, queued, close };
}
