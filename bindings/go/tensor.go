package weft

import (
	"fmt"
	"unsafe"
)

// DType is an element type.
type DType struct {
	Name       string // "float32"
	Code, Bits uint8  // DLPack's
}

// Size is the bytes of one element.
func (d DType) Size() int {
	if d.Bits < 8 {
		return 1
	}
	return int(d.Bits) / 8
}

// Float16 is an element of 16-bit floating point, as bits.
type Float16 uint16

// BFloat16 is an element of bfloat16, as bits.
type BFloat16 uint16

// Element lists the Go types that are element types.
type Element interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64 | bool | Float16 | BFloat16
}

// DTypeOf is the element type of a Go type.
func DTypeOf[T Element]() DType {
	var zero T
	bits := uint8(8 * unsafe.Sizeof(zero))
	switch any(zero).(type) {
	case int8, int16, int32, int64:
		return DType{fmt.Sprintf("int%d", bits), 0, bits}
	case uint8, uint16, uint32, uint64:
		return DType{fmt.Sprintf("uint%d", bits), 1, bits}
	case BFloat16:
		return DType{"bfloat16", 4, bits}
	case bool:
		return DType{"bool", 6, bits}
	default:
		return DType{fmt.Sprintf("float%d", bits), 2, bits}
	}
}

// Tensor is an array, row by row.
type Tensor struct {
	dtype DType
	shape []int
	bytes []byte
}

// New makes a tensor of the elements of data, which it uses where they lie. Without sizes it has none: one element.
//
// New panics if data are not as many elements as the sizes say.
func New[T Element](data []T, shape ...int) *Tensor {
	if len(data) != length(shape) {
		panic(fmt.Sprintf("weft: a tensor of sizes %v is given %d elements", shape, len(data)))
	}
	var zero T
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(data)*int(unsafe.Sizeof(zero)))
	return &Tensor{DTypeOf[T](), append([]int(nil), shape...), bytes}
}

// FromBytes makes a tensor of a copy of elements of any type, in the order of the machine.
//
// FromBytes panics if data are not as many elements as the sizes say.
func FromBytes(data []byte, dtype DType, shape ...int) *Tensor {
	if len(data) != length(shape)*dtype.Size() {
		panic(fmt.Sprintf("weft: a tensor of %s of sizes %v is given %d bytes", dtype.Name, shape, len(data)))
	}
	bytes := aligned(len(data))
	copy(bytes, data)
	return &Tensor{dtype, append([]int(nil), shape...), bytes}
}

// Values gives the elements of t, where they lie.
func Values[T Element](t *Tensor) ([]T, error) {
	if wanted := DTypeOf[T](); t.dtype.Code != wanted.Code || t.dtype.Bits != wanted.Bits {
		return nil, &Error{ErrOutput, fmt.Sprintf("the tensor is %s, not %s", t.dtype.Name, wanted.Name)}
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t.bytes))), t.Len()), nil
}

// DType is the element type.
func (t *Tensor) DType() DType { return t.dtype }

// Shape is the sizes.
func (t *Tensor) Shape() []int { return append([]int(nil), t.shape...) }

// Len is the number of elements.
func (t *Tensor) Len() int { return length(t.shape) }

// Bytes are the elements, where they lie, in the order of the machine.
func (t *Tensor) Bytes() []byte { return t.bytes }

// length is the number of elements of a shape; -1 if a size is negative or it is too large.
func length(shape []int) int {
	n := 1
	for _, d := range shape {
		if d < 0 || (d > 0 && n > (1<<48)/d) {
			return -1
		}
		n *= d
	}
	return n
}

// aligned makes bytes at a multiple of 8.
func aligned(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}
