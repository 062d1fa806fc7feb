"""What schedule rules of all targets share about operators of the library: their algorithms' parts by role."""
