// Command run runs a model with one float32 input and one float32 output of two dimensions on rows from a file.
//
//	run LIBRARY ARCHIVE|- INPUT OUTPUT
//
// LIBRARY is libweft, and ARCHIVE a file of weft compile; or LIBRARY is a file of weft export, and ARCHIVE is "-". INPUT
// and OUTPUT hold the numbers, row by row, and nothing else.
package main

import (
	"fmt"
	"os"

	"github.com/weft-dev/weft/bindings/go"
)

func run(library, archive, input, output string) error {
	loaded, err := weft.Load(library)
	if err != nil {
		return err
	}
	var program *weft.Program
	if archive == "-" {
		program, err = loaded.OpenInside(nil)
	} else {
		program, err = loaded.Open(archive, nil)
	}
	if err != nil {
		return err
	}
	defer program.Close()

	in := program.Inputs[0]
	if len(in.Shape) != 2 || in.Shape[1] < 1 {
		return fmt.Errorf("%s has no rows of a fixed size", in.Name)
	}
	x, err := os.ReadFile(input)
	if err != nil {
		return err
	}
	row := in.Shape[1] * in.DType.Size()
	rows := len(x) / row
	results, err := program.Run(weft.FromBytes(x[:rows*row], in.DType, rows, in.Shape[1]))
	if err != nil {
		return err
	}
	return os.WriteFile(output, results[0].Bytes(), 0o644)
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: run LIBRARY ARCHIVE|- INPUT OUTPUT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
