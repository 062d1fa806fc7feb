// Package weft runs models that Weft compiled: by libweft from archives (weft compile), or from a library that weft
// export wrote.
//
//	library, err := weft.Load("libweft.so")
//	program, err := library.Open("model.weft", nil)
//	defer program.Close()
//	results, err := program.Run(weft.New(x, 8, 64))
//	y, err := weft.Values[float32](results[0])
//
// Libraries and archives hold machine code, which runs with the rights of the process: load only those that you trust.
//
// The package uses cgo. The files weft.h and weft_library.h are copies of those of libweft and of the binding for C.
package weft

/*
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "weft_library.h"

// Go cannot call pointers to functions.
static int32_t call_open(const weft_library *l, const char *path, const weft_options *o, weft_program **p, weft_error *e) {
  return l->open(path, o, p, e);
}
static int32_t call_open_memory(const weft_library *l, const void *data, size_t bytes, const weft_options *o, weft_program **p, weft_error *e) {
  return l->open_memory(data, bytes, o, p, e);
}
static void call_close(const weft_library *l, weft_program *p) { l->close(p); }
static int32_t call_describe(const weft_library *l, const weft_program *p, weft_program_info *i, weft_error *e) {
  return l->describe(p, i, e);
}
static int32_t call_value(const weft_library *l, const weft_program *p, int output, int32_t k, weft_value_info *i, weft_error *e) {
  return output ? l->output(p, k, i, e) : l->input(p, k, i, e);
}
static void call_release(const weft_library *l, weft_tensor *t) { l->release(t); }

// Tensors lie in two arrays; weft_run takes arrays of pointers, which Go may not make of pointers to its own memory.
static int32_t call_run(const weft_library *l, weft_program *p, weft_tensor *in, int32_t ins, weft_tensor *out, int32_t outs, weft_error *e) {
  const weft_tensor **const inputs = malloc(sizeof *inputs * (size_t)(ins + 1));
  weft_tensor **const outputs = malloc(sizeof *outputs * (size_t)(outs + 1));
  int32_t result = WEFT_ERROR_MEMORY;
  if (inputs != NULL && outputs != NULL) {
    for (int32_t k = 0; k < ins; ++k) inputs[k] = &in[k];
    for (int32_t k = 0; k < outs; ++k) outputs[k] = &out[k];
    result = l->run(p, inputs, outputs, e);
  }
  free(inputs);
  free(outputs);
  return result;
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Code is the kind of an Error; the numbers are those of weft.h.
type Code int32

// Kinds of errors.
const (
	ErrArgument    Code = C.WEFT_ERROR_ARGUMENT    // a number of tensors, a path where none is taken, a closed program
	ErrInput       Code = C.WEFT_ERROR_INPUT       // an input of another dtype, rank or size
	ErrOutput      Code = C.WEFT_ERROR_OUTPUT      // storage for an output that does not fit
	ErrMemory      Code = C.WEFT_ERROR_MEMORY      // no memory
	ErrFile        Code = C.WEFT_ERROR_FILE        // a file cannot be read, or a library loaded
	ErrArchive     Code = C.WEFT_ERROR_ARCHIVE     // no archive, or a damaged one, or not the expected one
	ErrVersion     Code = C.WEFT_ERROR_VERSION     // written by another version of Weft
	ErrMachine     Code = C.WEFT_ERROR_MACHINE     // compiled for another processor
	ErrUnsupported Code = C.WEFT_ERROR_UNSUPPORTED // a step of the model runs where Python is
	ErrRun         Code = C.WEFT_ERROR_RUN         // the run itself failed
	ErrSystem      Code = C.WEFT_ERROR_SYSTEM      // the system refuses
)

var codes = map[Code]string{
	ErrArgument: "argument", ErrInput: "input", ErrOutput: "output", ErrMemory: "memory", ErrFile: "file",
	ErrArchive: "archive", ErrVersion: "version", ErrMachine: "machine", ErrUnsupported: "unsupported", ErrRun: "run",
	ErrSystem: "system",
}

// Error makes a code usable with errors.Is: errors.Is(err, weft.ErrInput).
func (c Code) Error() string { return "weft: " + codes[c] }

// Error is what went wrong.
type Error struct {
	Code    Code
	Message string // what, then lines "where: ", "why: ", "hint: " as far as they are known
}

func (e *Error) Error() string { return e.Message }

// Unwrap gives the code.
func (e *Error) Unwrap() error { return e.Code }

func newError() C.weft_error { return C.weft_error{size: C.uint32_t(C.sizeof_weft_error)} }

func check(result C.int32_t, e *C.weft_error) error {
	if result == C.WEFT_OK {
		return nil
	}
	return &Error{Code(result), C.GoString(&e.message[0])}
}

// Library is libweft, or a library that weft export wrote. It stays loaded until the process ends.
type Library struct {
	functions *C.weft_library // in C's memory, never freed: there are as many as libraries
}

// Load loads the library at path.
func Load(path string) (*Library, error) { return LoadPrefix(path, "") }

// LoadPrefix loads a library that was exported with --prefix.
func LoadPrefix(path, prefix string) (*Library, error) {
	cpath, cprefix := C.CString(path), C.CString(prefix)
	defer C.free(unsafe.Pointer(cpath))
	defer C.free(unsafe.Pointer(cprefix))
	functions := (*C.weft_library)(C.calloc(1, C.sizeof_weft_library))
	e := newError()
	if err := check(C.weft_library_load(functions, cpath, cprefix, &e), &e); err != nil {
		C.free(unsafe.Pointer(functions))
		return nil, err
	}
	return &Library{functions}, nil
}

// Options says how a program is opened. The zero value is the default.
type Options struct {
	Threads int    // of a run, the caller's included; 0: WEFT_THREADS, the model's own, or as many as the process may use
	SHA256  string // the expected hash of the archive, 64 hexadecimal digits; "": any
}

// Value is what an input or output is.
type Value struct {
	Name  string
	DType DType
	Shape []int // -1: a size that is open
}

// Program is a loaded model. Its methods may be called by several goroutines at once.
type Program struct {
	Name            string  // the model's
	Target          string  // what it was compiled for
	Version         string  // of Weft, by which it was compiled
	Threads         int     // of a run
	Inputs, Outputs []Value // in order

	library *C.weft_library
	lock    sync.RWMutex // Close waits for runs
	program *C.weft_program
	archive unsafe.Pointer
}

// Open opens the archive at path, by libweft. Options may be nil.
//
// Nothing but Close gives the program's memory back.
func (l *Library) Open(path string, options *Options) (*Program, error) {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	return l.open(options, nil, func(o *C.weft_options, p **C.weft_program, e *C.weft_error) C.int32_t {
		return C.call_open(l.functions, cpath, o, p, e)
	})
}

// OpenInside opens the model inside of an export. Options may be nil.
func (l *Library) OpenInside(options *Options) (*Program, error) {
	return l.open(options, nil, func(o *C.weft_options, p **C.weft_program, e *C.weft_error) C.int32_t {
		return C.call_open(l.functions, nil, o, p, e)
	})
}

// OpenBytes opens an archive that lies in memory, by libweft. It is copied. Options may be nil.
func (l *Library) OpenBytes(archive []byte, options *Options) (*Program, error) {
	held := C.malloc(C.size_t(len(archive) + 64)) // used at a multiple of 64, until the program is closed
	at := unsafe.Add(held, (64-uintptr(held)%64)%64)
	copy(unsafe.Slice((*byte)(at), len(archive)), archive)
	return l.open(options, held, func(o *C.weft_options, p **C.weft_program, e *C.weft_error) C.int32_t {
		return C.call_open_memory(l.functions, at, C.size_t(len(archive)), o, p, e)
	})
}

func (l *Library) open(options *Options, archive unsafe.Pointer,
	call func(*C.weft_options, **C.weft_program, *C.weft_error) C.int32_t) (*Program, error) {
	raw := (*C.weft_options)(C.calloc(1, C.sizeof_weft_options)) // it points to C's memory, so it lies there, too
	defer C.free(unsafe.Pointer(raw))
	raw.size = C.uint32_t(C.sizeof_weft_options)
	if options != nil {
		raw.threads = C.int32_t(options.Threads)
		if options.SHA256 != "" {
			raw.sha256 = C.CString(options.SHA256)
			defer C.free(unsafe.Pointer(raw.sha256))
		}
	}
	e := newError()
	var program *C.weft_program
	if err := check(call(raw, &program, &e), &e); err != nil {
		C.free(archive)
		return nil, err
	}
	p := &Program{library: l.functions, program: program, archive: archive}
	if err := p.describe(); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Program) describe() error {
	e := newError()
	info := C.weft_program_info{size: C.uint32_t(C.sizeof_weft_program_info)}
	if err := check(C.call_describe(p.library, p.program, &info, &e), &e); err != nil {
		return err
	}
	p.Name, p.Target, p.Version = C.GoString(info.name), C.GoString(info.target), C.GoString(info.version)
	p.Threads = int(info.threads)
	for output, values := range []*[]Value{&p.Inputs, &p.Outputs} {
		count := info.inputs
		if output == 1 {
			count = info.outputs
		}
		for k := C.int32_t(0); k < count; k++ {
			v := C.weft_value_info{size: C.uint32_t(C.sizeof_weft_value_info)}
			if err := check(C.call_value(p.library, p.program, C.int(output), k, &v, &e), &e); err != nil {
				return err
			}
			value := Value{C.GoString(v.name), DType{C.GoString(v.dtype), uint8(v.code), uint8(v.bits)}, nil}
			for _, n := range unsafe.Slice(v.shape, int(v.ndim)) {
				value.Shape = append(value.Shape, int(n))
			}
			*values = append(*values, value)
		}
	}
	return nil
}

// Run runs the model on inputs in the order of p.Inputs; results are in the order of p.Outputs. They are copied to Go's
// memory, so that there is nothing to give back; RunInto copies nothing.
func (p *Program) Run(inputs ...*Tensor) ([]*Tensor, error) {
	found := make([]*Tensor, len(p.Outputs))
	err := p.run(inputs, nil, func(k int, raw *C.weft_tensor) {
		defer C.call_release(p.library, raw)
		shape := make([]int, int(raw.ndim))
		for i, n := range unsafe.Slice(raw.shape, int(raw.ndim)) {
			shape[i] = int(n)
		}
		t := &Tensor{dtype: p.Outputs[k].DType, shape: shape}
		t.bytes = aligned(t.Len() * t.dtype.Size())
		copy(t.bytes, unsafe.Slice((*byte)(raw.data), len(t.bytes)))
		found[k] = t
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// RunInto runs the model, and writes results to tensors of the caller, in the order of p.Outputs: their dtypes and sizes
// must be those of the results.
func (p *Program) RunInto(outputs []*Tensor, inputs ...*Tensor) error {
	if len(outputs) != len(p.Outputs) {
		return p.wrongCount(len(outputs), len(p.Outputs), "outputs")
	}
	return p.run(inputs, outputs, nil)
}

func (p *Program) wrongCount(given, wanted int, what string) error {
	return &Error{ErrArgument, fmt.Sprintf("'%s' has %d %s, %d are given", p.Name, wanted, what, given)}
}

// run calls weft_run. Without outputs, take gets those that have memory of Weft's.
func (p *Program) run(inputs, outputs []*Tensor, take func(int, *C.weft_tensor)) error {
	if len(inputs) != len(p.Inputs) {
		return p.wrongCount(len(inputs), len(p.Inputs), "inputs")
	}
	p.lock.RLock()
	defer p.lock.RUnlock()
	if p.program == nil {
		return &Error{ErrArgument, fmt.Sprintf("the program '%s' is closed", p.Name)}
	}
	// Tensors and sizes lie in C's memory: tensors point to sizes and data, and the data of Go are pinned.
	ranks := 0
	for _, t := range append(append([]*Tensor{}, inputs...), outputs...) {
		if t == nil {
			return &Error{ErrArgument, "a tensor is nil"}
		}
		ranks += len(t.shape)
	}
	if outputs == nil {
		for _, o := range p.Outputs {
			ranks += len(o.Shape)
		}
	}
	ins, outs := len(inputs), len(p.Outputs)
	memory := C.calloc(C.size_t(ins+outs+1), C.sizeof_weft_tensor)
	defer C.free(memory)
	numbers := C.calloc(C.size_t(ranks+1), 8)
	defer C.free(numbers)
	tensors := unsafe.Slice((*C.weft_tensor)(memory), ins+outs+1)
	sizes := unsafe.Slice((*C.int64_t)(numbers), ranks+1)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	for k := range tensors[:ins+outs] {
		raw := &tensors[k]
		raw.device_type, raw.lanes, raw.shape = 1, 1, &sizes[0]
		var t *Tensor
		if k < ins {
			t = inputs[k]
		} else if outputs != nil {
			t = outputs[k-ins]
		} else {
			sizes = sizes[len(p.Outputs[k-ins].Shape):]
			continue
		}
		raw.ndim, raw.code, raw.bits = C.int32_t(len(t.shape)), C.uint8_t(t.dtype.Code), C.uint8_t(t.dtype.Bits)
		for i, n := range t.shape {
			sizes[i] = C.int64_t(n)
		}
		sizes = sizes[len(t.shape):]
		data := unsafe.Pointer(unsafe.SliceData(t.bytes))
		if len(t.bytes) == 0 {
			data = memory // tensors without elements: an address that nobody reads
		} else {
			pinner.Pin(data)
		}
		raw.data = data
	}
	e := newError()
	result := C.call_run(p.library, p.program, &tensors[0], C.int32_t(ins), &tensors[ins], C.int32_t(outs), &e)
	runtime.KeepAlive(inputs)
	runtime.KeepAlive(outputs)
	if err := check(result, &e); err != nil {
		return err
	}
	if outputs == nil {
		for k := range p.Outputs {
			take(k, &tensors[ins+k])
		}
	}
	return nil
}

// Close waits for runs of other goroutines and gives the program's memory back. It may be called again.
func (p *Program) Close() error {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.program != nil {
		C.call_close(p.library, p.program)
		C.free(p.archive)
		p.program, p.archive = nil, nil
	}
	return nil
}
