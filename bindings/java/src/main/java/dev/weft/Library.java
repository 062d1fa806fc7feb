package dev.weft;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/**
 * libweft, which loads archives of {@code weft compile}, or a library that {@code weft export} wrote. It stays loaded
 * until the process ends.
 *
 * <p>Libraries and archives hold machine code, which runs with the rights of the process: load only those that you trust.
 */
public final class Library {
  private final long functions;

  private Library(long functions) {
    this.functions = functions;
  }

  /**
   * Loads the library at a path. On Android, a name without folders is looked up among the libraries of the app.
   *
   * @throws WeftException it cannot be loaded, or is no library of Weft
   */
  public static Library load(String path) {
    return load(path, "");
  }

  /** Loads a library that was exported with {@code --prefix}. */
  public static Library load(String path, String prefix) {
    return new Library(Natives.load(utf8(path), utf8(prefix)));
  }

  /**
   * Opens the archive at a path, by libweft.
   *
   * @throws WeftException the file cannot be read, is no archive, or does not fit this machine or library
   */
  public Program open(String path) {
    return open(path, new Options());
  }

  /** As {@link #open(String)}. */
  public Program open(String path, Options options) {
    return new Program(functions, Natives.open(functions, utf8(path), options.threads, utf8(options.sha256)), null);
  }

  /**
   * Opens the model inside of an export.
   *
   * @throws WeftException the library is libweft, or the model does not fit this processor
   */
  public Program openInside() {
    return openInside(new Options());
  }

  /** As {@link #openInside()}. */
  public Program openInside(Options options) {
    return new Program(functions, Natives.open(functions, null, options.threads, utf8(options.sha256)), null);
  }

  /**
   * Opens the archive that lies in a direct buffer between its position and limit, by libweft: the asset of an app, for
   * example. The program keeps the buffer, which must not change until it is closed.
   *
   * @throws IllegalArgumentException the buffer is not direct
   */
  public Program open(ByteBuffer archive, Options options) {
    if (!archive.isDirect()) {
      throw new IllegalArgumentException("the buffer of an archive is direct");
    }
    ByteBuffer held = archive.slice();
    long program = Natives.openMemory(functions, held, held.capacity(), options.threads, utf8(options.sha256));
    return new Program(functions, program, held);
  }

  private static byte[] utf8(String text) {
    return text == null ? null : (text + "\0").getBytes(StandardCharsets.UTF_8);
  }

  /** How a program is opened. */
  public static final class Options {
    private int threads;
    private String sha256;

    /** Threads of a run, the caller's included; 0: WEFT_THREADS, the model's own, or as many as the process may use. */
    public Options threads(int threads) {
      this.threads = threads;
      return this;
    }

    /** The expected hash of the archive, 64 hexadecimal digits: another file is refused. */
    public Options sha256(String sha256) {
      this.sha256 = sha256;
      return this;
    }
  }
}
