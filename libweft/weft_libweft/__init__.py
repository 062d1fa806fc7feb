"""Compiled models as libraries and objects of their own, and the C runtime of archives.

`weft export -f elf|pe|obj|macho-obj` writes files that need no compiler, linker or other tool; the folder beside this
package has the C sources of libweft, which loads archives, and its header weft.h.
"""
