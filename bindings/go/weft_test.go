package weft_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/weft-dev/weft/bindings/go"
)

// Tests on the files that tests/bindings/materials.py writes, in the folder WEFT_TEST_FOLDER.
func at(name string) string { return filepath.Join(os.Getenv("WEFT_TEST_FOLDER"), name) }

func TestMain(m *testing.M) {
	if os.Getenv("WEFT_TEST_FOLDER") == "" {
		println("WEFT_TEST_FOLDER names the folder of files")
		os.Exit(2)
	}
	os.Exit(m.Run())
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	found, err := os.ReadFile(at(name))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func elements[T weft.Element](t *testing.T, name string) []T {
	var zero T
	raw := read(t, name)
	made := make([]T, len(raw)/int(unsafe.Sizeof(zero)))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&made[0])), len(raw)), raw)
	return made
}

func load(t *testing.T, name, prefix string) *weft.Library {
	t.Helper()
	found, err := weft.LoadPrefix(at(name), prefix)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func opened(t *testing.T, p *weft.Program, err error) *weft.Program {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func fails(t *testing.T, err error, code weft.Code, part string) {
	t.Helper()
	if err == nil || !errors.Is(err, code) || !strings.Contains(err.Error(), part) {
		t.Fatalf("expected %v: %s; got %v", code, part, err)
	}
}

// everyWay runs a test on the model from an archive, from memory and from an export.
func everyWay(t *testing.T, test func(t *testing.T, p *weft.Program)) {
	t.Run("archive", func(t *testing.T) {
		p, err := load(t, "libweft.so", "").Open(at("mlp.weft"), nil)
		test(t, opened(t, p, err))
	})
	t.Run("memory", func(t *testing.T) {
		p, err := load(t, "libweft.so", "").OpenBytes(read(t, "mlp.weft"), nil)
		test(t, opened(t, p, err))
	})
	t.Run("export", func(t *testing.T) {
		p, err := load(t, "mlp.so", "").OpenInside(nil)
		test(t, opened(t, p, err))
	})
}

func TestRun(t *testing.T) {
	everyWay(t, func(t *testing.T, p *weft.Program) {
		x, y := elements[float32](t, "mlp-x.bin"), read(t, "mlp-y.bin")
		in := p.Inputs[0]
		if p.Name != "mlp" || in.Name != "x" || in.DType != weft.DTypeOf[float32]() || !reflect.DeepEqual(in.Shape, []int{-1, 64}) {
			t.Fatal(p.Name, in)
		}
		results, err := p.Run(weft.New(x, 3, 64))
		if err != nil || len(results) != 1 || !reflect.DeepEqual(results[0].Shape(), []int{3, 32}) || !bytes.Equal(results[0].Bytes(), y) {
			t.Fatal(results, err)
		}
		if v, err := weft.Values[float32](results[0]); err != nil || len(v) != 96 || v[0] != elements[float32](t, "mlp-y.bin")[0] {
			t.Fatal(v, err)
		}
		_, err = weft.Values[float64](results[0])
		fails(t, err, weft.ErrOutput, "the tensor is float32, not float64")

		room := make([]float32, 96)
		if err := p.RunInto([]*weft.Tensor{weft.New(room, 3, 32)}, weft.New(x, 3, 64)); err != nil || !bytes.Equal(weft.New(room, 96).Bytes(), y) {
			t.Fatal(err)
		}
		fails(t, p.RunInto([]*weft.Tensor{weft.New(room[:64], 2, 32)}, weft.New(x, 3, 64)), weft.ErrOutput, "has size 2 on axis 0")
		fails(t, p.RunInto(nil, weft.New(x, 3, 64)), weft.ErrArgument, "'mlp' has 1 outputs, 0 are given")
		none, err := p.Run(weft.New([]float32{}, 0, 64))
		if err != nil || !reflect.DeepEqual(none[0].Shape(), []int{0, 32}) {
			t.Fatal(none, err)
		}
	})
}

func TestEveryKindOfValue(t *testing.T) {
	archive, err := load(t, "libweft.so", "").Open(at("mixed.weft"), nil)
	opened(t, archive, err)
	export, err := load(t, "mixed.so", "mixed").OpenInside(nil)
	opened(t, export, err)
	for _, p := range []*weft.Program{archive, export} {
		k := weft.New(elements[int64](t, "mixed-k.bin"), 5)
		results, err := p.Run(weft.New(elements[float32](t, "mixed-x.bin"), 4, 3), k, weft.New(elements[weft.Float16](t, "mixed-s.bin")),
			weft.FromBytes(read(t, "mixed-m.bin"), weft.DTypeOf[bool](), 2))
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"y", "places", "t", "w", "l"} {
			if p.Outputs[i].Name != name || !bytes.Equal(results[i].Bytes(), read(t, "mixed-"+name+".bin")) {
				t.Fatal(p.Outputs[i], results[i])
			}
		}
		if !reflect.DeepEqual(results[1].Shape(), []int{2, 7}) || len(results[2].Shape()) != 0 {
			t.Fatal(results[1].Shape(), results[2].Shape())
		}
		again, err := p.Run(results[0], k, results[2], results[3])
		if err != nil || !reflect.DeepEqual(again[1].Shape(), []int{2, 7}) {
			t.Fatal(again, err)
		}
	}
}

func TestGoroutines(t *testing.T) {
	everyWay(t, func(t *testing.T, p *weft.Program) {
		x, y := elements[float32](t, "mlp-x.bin"), read(t, "mlp-y.bin")
		var group sync.WaitGroup
		for k := 0; k < 8; k++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for i := 0; i < 50; i++ {
					results, err := p.Run(weft.New(x, 3, 64))
					if err != nil || !bytes.Equal(results[0].Bytes(), y) {
						t.Error(err)
						return
					}
					if i%10 == 0 {
						runtime.GC()
					}
				}
			}()
		}
		group.Wait()
	})
}

func TestClose(t *testing.T) {
	everyWay(t, func(t *testing.T, p *weft.Program) {
		x, y := elements[float32](t, "mlp-x.bin"), read(t, "mlp-y.bin")
		var group sync.WaitGroup
		for k := 0; k < 4; k++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for {
					results, err := p.Run(weft.New(x, 3, 64))
					if errors.Is(err, weft.ErrArgument) {
						return // closed
					}
					if err != nil || !bytes.Equal(results[0].Bytes(), y) {
						t.Error(err)
						return
					}
				}
			}()
		}
		for k := 0; k < 2; k++ {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		group.Wait()
		_, err := p.Run(weft.New(x, 3, 64))
		fails(t, err, weft.ErrArgument, "the program 'mlp' is closed")
	})
}

func TestWrongInputs(t *testing.T) {
	everyWay(t, func(t *testing.T, p *weft.Program) {
		_, err := p.Run(weft.New(make([]float32, 189), 3, 63))
		fails(t, err, weft.ErrInput, "input 'x' of 'mlp' has size 63 on axis 1, expected 64")
		_, err = p.Run(weft.New(make([]float64, 64), 1, 64))
		fails(t, err, weft.ErrInput, "float32")
		_, err = p.Run()
		fails(t, err, weft.ErrArgument, "'mlp' has 1 inputs, 0 are given")
		_, err = p.Run(nil)
		fails(t, err, weft.ErrArgument, "a tensor is nil")
	})
	defer func() {
		if found, _ := recover().(string); !strings.Contains(found, "a tensor of sizes [2 64] is given 3 elements") {
			t.Error(found)
		}
	}()
	weft.New([]float32{1, 2, 3}, 2, 64)
}

func TestWhatCannotBeLoaded(t *testing.T) {
	_, err := weft.Load(at("nothing.so"))
	fails(t, err, weft.ErrFile, "cannot be loaded")
	_, err = weft.Load(at("mixed.so"))
	fails(t, err, weft.ErrFile, "no function 'weft_api_version'")
	library := load(t, "libweft.so", "")
	_, err = library.Open(at("nothing.weft"), nil)
	fails(t, err, weft.ErrFile, "nothing.weft")
	_, err = library.Open(at("damaged.weft"), nil)
	fails(t, err, weft.ErrArchive, "damaged")
	_, err = library.Open(at("foreign.weft"), nil)
	fails(t, err, weft.ErrMachine, "was compiled for")
	_, err = library.OpenInside(nil)
	fails(t, err, weft.ErrArgument, "path is a null pointer")
	_, err = load(t, "mlp.so", "").Open(at("mlp.weft"), nil)
	fails(t, err, weft.ErrArgument, "opens no file")
	_, err = library.OpenBytes(read(t, "mlp.weft")[:9999], nil)
	fails(t, err, weft.ErrArchive, "")
}

func TestOptions(t *testing.T) {
	options := &weft.Options{Threads: 1, SHA256: string(read(t, "mlp.sha256"))}
	library := load(t, "libweft.so", "")
	p, err := library.Open(at("mlp.weft"), options)
	if opened(t, p, err).Threads != 1 {
		t.Fatal(p.Threads)
	}
	_, err = library.Open(at("mixed.weft"), options)
	fails(t, err, weft.ErrArchive, "not the expected one")
}
