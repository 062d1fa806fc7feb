/** A thread of the pool: runs parts of parallel loops until its page ends. */

const port = globalThis.WorkerGlobalScope ? self : (await import("node:worker_threads")).parentPort;

port.onmessage = async ({ data: [memory, loaded, size, state, stack, number] }) => {
  const value = (v, mutable) => new WebAssembly.Global({ value: "i32", mutable }, v), none = () => 0;
  const env = {
    memory, __indirect_function_table: new WebAssembly.Table({ initial: size, element: "anyfunc" }), __stack_pointer: value(stack, true),
    weft_reserve: none, weft_release: none,
  };
  let work;
  for (const [module, bases] of loaded) {
    for (const base in bases) env[base] = value(bases[base]);
    work ??= (await WebAssembly.instantiate(module, { env })).exports.weft_work;
  }
  port.postMessage(0);
  for (;;)
    try {
      work(state * 4, number);
    } catch {
      // Its part of the loop is lost: the caller is told.
      const words = new Int32Array(memory.buffer);
      env.__stack_pointer.value = stack;
      Atomics.store(words, state + 3, 1);
      Atomics.sub(words, state + 2, 1);
    }
};
