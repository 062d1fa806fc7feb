//! Runs a model with one float32 input and one float32 output of two dimensions on rows from a file.
//!
//! run LIBRARY ARCHIVE|- INPUT OUTPUT
//!
//! LIBRARY is libweft, and ARCHIVE a file of `weft compile`; or LIBRARY is a file of `weft export`, and ARCHIVE is "-".
//! INPUT and OUTPUT hold the numbers, row by row, and nothing else.

use std::error::Error;
use weft::{Library, Options, TensorView};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, archive, input, output] = arguments.as_slice() else {
        return Err("usage: run LIBRARY ARCHIVE|- INPUT OUTPUT".into());
    };
    // SAFETY: the caller trusts what they name.
    let library = unsafe { Library::load(library)? };
    let program = match archive.as_str() {
        "-" => library.open_inside(&Options::default())?,
        path => unsafe { library.open(path, &Options::default())? },
    };
    let [_, Some(width)] = program.inputs()[0].shape[..] else {
        return Err("the model's input has no rows of a fixed size".into());
    };
    let bytes = std::fs::read(input)?;
    let x: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
    let results = program.run(&[TensorView::new(&x, &[x.len() / width, width])])?;
    std::fs::write(output, results[0].as_bytes())?;
    Ok(())
}
