module github.com/weft-dev/weft/bindings/go

go 1.21
