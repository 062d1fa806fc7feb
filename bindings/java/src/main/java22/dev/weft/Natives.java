package dev.weft;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;

import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/**
 * The functions of weft.h by the foreign function interface of Java 22 and later, without native code of its own. Takes
 * the place of the class of this name in src/main/java. For machines with pointers of 64 bits.
 */
final class Natives {
  private static final int API_VERSION = 1;
  private static final int FILE = 5;
  private static final int VERSION = 7;

  // Bytes of the structures of weft.h, and where their fields lie.
  private static final long ERROR_BYTES = 512;
  private static final long ERROR_MESSAGE = 8;
  private static final long OPTIONS_BYTES = 16;
  private static final long PROGRAM_BYTES = 40;
  private static final long VALUE_BYTES = 40;
  private static final long TENSOR_BYTES = 48;
  private static final long TENSOR_SHAPE = 24;

  private static final AddressLayout TEXT = ADDRESS.withTargetLayout(MemoryLayout.sequenceLayout(Long.MAX_VALUE, JAVA_BYTE));
  private static final List<Functions> LIBRARIES = new CopyOnWriteArrayList<>(); // for good: libraries stay loaded

  private Natives() {}

  /** The functions of one library. */
  private record Functions(
      MethodHandle open, MethodHandle openMemory, MethodHandle close, MethodHandle describe, MethodHandle input,
      MethodHandle output, MethodHandle run, MethodHandle release) {}

  static long load(byte[] path, byte[] prefix) {
    String name = text(path);
    String before = text(prefix).isEmpty() ? "" : text(prefix) + "_";
    SymbolLookup library;
    try {
      library = SymbolLookup.libraryLookup(name, Arena.global());
    } catch (IllegalArgumentException error) {
      throw failed(FILE, "the library '" + name + "' cannot be loaded\nwhy: " + error.getMessage());
    }
    Linker linker = Linker.nativeLinker();
    class Find {
      MethodHandle of(String function, FunctionDescriptor type) {
        String symbol = before + "weft_" + function;
        MemorySegment at = library.find(symbol).orElseThrow(() -> failed(FILE,
            "'" + name + "' is no library of Weft\nwhy: it has no function '" + symbol
                + "'\nhint: give the prefix that it was exported with, if it has one"));
        return linker.downcallHandle(at, type);
      }
    }
    Find find = new Find();
    MethodHandle version = find.of("api_version", FunctionDescriptor.of(JAVA_INT));
    FunctionDescriptor value = FunctionDescriptor.of(JAVA_INT, ADDRESS, JAVA_INT, ADDRESS, ADDRESS);
    Functions found = new Functions(
        find.of("open", FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, ADDRESS, ADDRESS)),
        find.of("open_memory", FunctionDescriptor.of(JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS, ADDRESS)),
        find.of("close", FunctionDescriptor.ofVoid(ADDRESS)),
        find.of("describe", FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, ADDRESS)),
        find.of("input", value),
        find.of("output", value),
        find.of("run", FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, ADDRESS, ADDRESS)),
        find.of("release", FunctionDescriptor.ofVoid(ADDRESS)));
    if (call(() -> (int) version.invokeExact()) < API_VERSION) {
      throw failed(VERSION, "the library '" + name + "' is older than this package");
    }
    synchronized (LIBRARIES) {
      LIBRARIES.add(found);
      return LIBRARIES.size();
    }
  }

  static long open(long functions, byte[] path, int threads, byte[] sha256) {
    MethodHandle open = at(functions).open;
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment options = options(arena, threads, sha256);
      MemorySegment program = arena.allocate(ADDRESS);
      MemorySegment name = bytes(arena, path);
      MemorySegment error = error(arena);
      check(call(() -> (int) open.invokeExact(name, options, program, error)), error);
      return program.get(ADDRESS, 0).address();
    }
  }

  static long openMemory(long functions, ByteBuffer archive, long size, int threads, byte[] sha256) {
    MethodHandle open = at(functions).openMemory;
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment options = options(arena, threads, sha256);
      MemorySegment program = arena.allocate(ADDRESS);
      MemorySegment data = MemorySegment.ofBuffer(archive);
      MemorySegment error = error(arena);
      check(call(() -> (int) open.invokeExact(data, size, options, program, error)), error);
      return program.get(ADDRESS, 0).address();
    }
  }

  static void close(long functions, long program) {
    MethodHandle close = at(functions).close;
    call(() -> {
      close.invokeExact(MemorySegment.ofAddress(program));
      return 0;
    });
  }

  static byte[][] describe(long functions, long program, int[] counts) {
    MethodHandle describe = at(functions).describe;
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment info = sized(arena, PROGRAM_BYTES);
      MemorySegment error = error(arena);
      check(call(() -> (int) describe.invokeExact(MemorySegment.ofAddress(program), info, error)), error);
      for (int k = 0; k < 3; ++k) {
        counts[k] = info.get(JAVA_INT, 4 + 4L * k);
      }
      return new byte[][] {utf8(info, 16), utf8(info, 24), utf8(info, 32)};
    }
  }

  static long[] value(long functions, long program, boolean output, int index, int[] type, byte[][] texts) {
    MethodHandle describe = output ? at(functions).output : at(functions).input;
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment info = sized(arena, VALUE_BYTES);
      MemorySegment error = error(arena);
      check(call(() -> (int) describe.invokeExact(MemorySegment.ofAddress(program), index, info, error)), error);
      type[0] = Byte.toUnsignedInt(info.get(JAVA_BYTE, 8));
      type[1] = Byte.toUnsignedInt(info.get(JAVA_BYTE, 9));
      texts[0] = utf8(info, 16);
      texts[1] = utf8(info, 24);
      return info.get(ADDRESS, 32).reinterpret(8L * info.get(JAVA_INT, 4)).toArray(JAVA_LONG);
    }
  }

  static void run(
      long functions, long program, ByteBuffer[] in, int[] inTypes, long[][] inShapes,
      ByteBuffer[] storage, int[] outTypes, long[][] outShapes, long[] results) {
    MethodHandle run = at(functions).run;
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment inputs = tensors(arena, in, inTypes, inShapes);
      MemorySegment outputs = tensors(arena, storage, outTypes, outShapes);
      MemorySegment error = error(arena);
      check(call(() -> (int) run.invokeExact(MemorySegment.ofAddress(program), inputs, outputs, error)), error);
      for (int k = 0; results != null && k < results.length; ++k) {
        MemorySegment tensor = outputs.getAtIndex(ADDRESS, k).reinterpret(TENSOR_BYTES);
        results[k] = tensor.get(ADDRESS, 0).address();
        long rank = outShapes[k].length;
        MemorySegment.copy(tensor.get(ADDRESS, TENSOR_SHAPE).reinterpret(8 * rank), JAVA_LONG, 0, outShapes[k], 0, (int) rank);
      }
    } finally {
      Reference.reachabilityFence(in);
      Reference.reachabilityFence(storage);
    }
  }

  static void take(long functions, long result, ByteBuffer to, long bytes) {
    MethodHandle release = at(functions).release;
    if (to != null) {
      MemorySegment.ofBuffer(to).copyFrom(MemorySegment.ofAddress(result).reinterpret(bytes));
    }
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment tensor = arena.allocate(TENSOR_BYTES, 8);
      tensor.set(ADDRESS, 0, MemorySegment.ofAddress(result));
      call(() -> {
        release.invokeExact(tensor);
        return 0;
      });
    }
  }

  private interface Call {
    int run() throws Throwable;
  }

  /** A call of a native function, which throws nothing but errors of the machine. */
  private static int call(Call call) {
    try {
      return call.run();
    } catch (RuntimeException | Error error) {
      throw error;
    } catch (Throwable error) {
      throw new AssertionError(error);
    }
  }

  private static Functions at(long library) {
    return LIBRARIES.get((int) library - 1);
  }

  private static WeftException failed(int code, String message) {
    return new WeftException(code, message.getBytes(StandardCharsets.UTF_8));
  }

  private static void check(int result, MemorySegment error) {
    if (result != 0) {
      throw failed(result, error.getString(ERROR_MESSAGE));
    }
  }

  /** A structure that begins with its size. */
  private static MemorySegment sized(Arena arena, long bytes) {
    MemorySegment made = arena.allocate(bytes, 8);
    made.set(JAVA_INT, 0, (int) bytes);
    return made;
  }

  private static MemorySegment error(Arena arena) {
    return sized(arena, ERROR_BYTES);
  }

  private static MemorySegment options(Arena arena, int threads, byte[] sha256) {
    MemorySegment made = sized(arena, OPTIONS_BYTES);
    made.set(JAVA_INT, 4, threads);
    made.set(ADDRESS, 8, bytes(arena, sha256));
    return made;
  }

  private static MemorySegment bytes(Arena arena, byte[] of) {
    return of == null ? MemorySegment.NULL : arena.allocateFrom(JAVA_BYTE, of);
  }

  /** Pointers to tensors. */
  private static MemorySegment tensors(Arena arena, ByteBuffer[] buffers, int[] types, long[][] shapes) {
    MemorySegment pointers = arena.allocate(ADDRESS, shapes.length + 1);
    for (int k = 0; k < shapes.length; ++k) {
      MemorySegment tensor = arena.allocate(TENSOR_BYTES, 8);
      tensor.set(ADDRESS, 0, buffers == null ? MemorySegment.NULL : MemorySegment.ofBuffer(buffers[k]));
      tensor.set(JAVA_INT, 8, 1);
      tensor.set(JAVA_INT, 16, shapes[k].length);
      tensor.set(JAVA_BYTE, 20, (byte) (types[k] >> 8));
      tensor.set(JAVA_BYTE, 21, (byte) types[k]);
      tensor.set(JAVA_SHORT, 22, (short) 1);
      tensor.set(ADDRESS, TENSOR_SHAPE, arena.allocateFrom(JAVA_LONG, shapes[k]));
      pointers.setAtIndex(ADDRESS, k, tensor);
    }
    return pointers;
  }

  private static byte[] utf8(MemorySegment info, long offset) {
    return info.get(TEXT, offset).getString(0).getBytes(StandardCharsets.UTF_8);
  }

  private static String text(byte[] ended) {
    return ended == null ? "" : new String(ended, 0, ended.length - 1, StandardCharsets.UTF_8);
  }
}
