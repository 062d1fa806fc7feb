package dev.weft;

import java.nio.charset.StandardCharsets;

/** What went wrong. The message says what, then lines "where: ", "why: ", "hint: " as far as they are known. */
public final class WeftException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** The kind of an exception, in the order of the codes of weft.h. */
  public enum Kind {
    /** A number of tensors, a path where none is taken, or a closed program. */
    ARGUMENT,
    /** An input of another dtype, rank or size. */
    INPUT,
    /** Storage for an output that does not fit. */
    OUTPUT,
    /** No memory. */
    MEMORY,
    /** A file cannot be read, or a library loaded. */
    FILE,
    /** No archive, or one that is damaged, cut short, or not the expected one. */
    ARCHIVE,
    /** Written by another version of Weft. */
    VERSION,
    /** Compiled for another architecture, or a processor with more instructions. */
    MACHINE,
    /** A step of the model runs where Python is: strings, pictures, other devices. */
    UNSUPPORTED,
    /** The run itself failed. */
    RUN,
    /** The system refuses: executable memory is forbidden, for example. */
    SYSTEM
  }

  private final Kind kind;

  WeftException(Kind kind, String message) {
    super(message);
    this.kind = kind;
  }

  /** Of a code of weft.h, and a message in UTF-8; called by native code. */
  WeftException(int code, byte[] message) {
    this(Kind.values()[code - 1], new String(message, StandardCharsets.UTF_8));
  }

  /** The kind. */
  public Kind kind() {
    return kind;
  }
}
