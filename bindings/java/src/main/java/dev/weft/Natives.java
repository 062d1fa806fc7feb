package dev.weft;

import java.nio.ByteBuffer;

/**
 * The functions of weft.h by JNI (src/main/c/weft_jni.c), for Java 8 and later and for Android. From Java 22 on, the class
 * of this name in src/main/java22 takes its place in a multi-release jar.
 *
 * <p>Texts are UTF-8; those that are given end with 0, or are null. A type is DLPack's code times 256 plus its bits.
 */
final class Natives {
  static {
    String path = System.getProperty("dev.weft.jni");
    if (path != null) {
      System.load(path);
    } else {
      System.loadLibrary("weft_jni");
    }
  }

  private Natives() {}

  static native long load(byte[] path, byte[] prefix);

  static native long open(long functions, byte[] path, int threads, byte[] sha256);

  static native long openMemory(long functions, ByteBuffer archive, long bytes, int threads, byte[] sha256);

  static native void close(long functions, long program);

  /** Writes inputs, outputs, threads to counts; gives name, target, version. */
  static native byte[][] describe(long functions, long program, int[] counts);

  /** Writes code and bits to type, name and dtype to texts; gives the sizes. */
  static native long[] value(long functions, long program, boolean output, int index, int[] type, byte[][] texts);

  /**
   * Runs the model. Without storage, writes the sizes of results to outShapes, and the addresses of their memory, which
   * {@link #take} gives back, to results.
   */
  static native void run(
      long functions, long program, ByteBuffer[] in, int[] inTypes, long[][] inShapes,
      ByteBuffer[] storage, int[] outTypes, long[][] outShapes, long[] results);

  /** Copies the memory of a result to a buffer, if there is one, and gives it back. */
  static native void take(long functions, long result, ByteBuffer to, long bytes);
}
