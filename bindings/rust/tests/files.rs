//! Tests on the files that tests/bindings/materials.py writes, in the folder WEFT_TEST_FOLDER.

use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs, thread};

use weft::{DType, Element, Error, ErrorKind, Library, Options, Program, TensorView, TensorViewMut, F16};

fn at(name: &str) -> PathBuf {
    PathBuf::from(env::var_os("WEFT_TEST_FOLDER").expect("WEFT_TEST_FOLDER names the folder of files")).join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(at(name)).unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    bytes(name).chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

fn library(name: &str) -> Library {
    unsafe { Library::load(at(name)) }.unwrap()
}

fn archive(name: &str) -> Result<Program, Error> {
    unsafe { library("libweft.so").open(at(name), &Options::default()) }
}

fn mlps() -> Vec<Program> {
    vec![
        archive("mlp.weft").unwrap(),
        unsafe { library("libweft.so").open_bytes(&bytes("mlp.weft"), &Options::default()) }.unwrap(),
        library("mlp.so").open_inside(&Options::default()).unwrap(),
    ]
}

fn fails<T>(result: Result<T, Error>, kind: ErrorKind, part: &str) {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn runs() {
    let x = floats("mlp-x.bin");
    for program in mlps() {
        let input = &program.inputs()[0];
        assert_eq!((program.name(), input.name.as_str(), input.dtype_name.as_str()), ("mlp", "x", "float32"));
        assert_eq!((input.dtype, &input.shape[..]), (f32::DTYPE, &[None, Some(64)][..]));
        let results = program.run(&[TensorView::new(&x, &[3, 64])]).unwrap();
        assert_eq!((results.len(), results[0].shape(), results[0].dtype()), (1, vec![3, 32], f32::DTYPE));
        drop(program);
        assert_eq!(results[0].as_bytes(), bytes("mlp-y.bin"));
        assert_eq!(results[0].as_slice::<f32>().unwrap(), floats("mlp-y.bin"));
        fails(results[0].as_slice::<f64>(), ErrorKind::Output, "elements of");
    }
}

#[test]
fn writes_to_memory_of_the_caller() {
    let x = floats("mlp-x.bin");
    for program in mlps() {
        let view = || TensorView::new(&x, &[3, 64]);
        let mut room = vec![0f32; 96];
        program.run_into(&[view()], &mut [TensorViewMut::new(&mut room, &[3, 32]).unwrap()]).unwrap();
        assert_eq!(room, floats("mlp-y.bin"));
        let small = program.run_into(&[view()], &mut [TensorViewMut::new(&mut room[..64], &[2, 32]).unwrap()]);
        fails(small, ErrorKind::Output, "has size 2 on axis 0");
        fails(program.run_into(&[view()], &mut []), ErrorKind::Argument, "'mlp' has 1 outputs, 0 are given");
        fails(TensorViewMut::new(&mut room, &[4, 32]), ErrorKind::Argument, "is given 96 elements");
        assert_eq!(program.run(&[TensorView::new::<f32>(&[], &[0, 64])]).unwrap()[0].shape(), [0, 32]);
    }
}

#[test]
fn every_kind_of_value() {
    let export = unsafe { Library::load_with_prefix(at("mixed.so"), "mixed") }.unwrap();
    for program in [archive("mixed.weft").unwrap(), export.open_inside(&Options::default()).unwrap()] {
        let x = floats("mixed-x.bin");
        let k: Vec<i64> =
            bytes("mixed-k.bin").chunks_exact(8).map(|b| i64::from_ne_bytes(b.try_into().unwrap())).collect();
        let s = [F16(u16::from_ne_bytes(bytes("mixed-s.bin").try_into().unwrap()))];
        let m = bytes("mixed-m.bin");
        let results = program
            .run(&[
                TensorView::new(&x, &[4, 3]),
                TensorView::new(&k, &[5]),
                TensorView::new(&s, &[]),
                TensorView::from_bytes(&m, bool::DTYPE, &[2]),
            ])
            .unwrap();
        let names: Vec<&str> = program.outputs().iter().map(|o| o.name.as_str()).collect();
        assert_eq!(names, ["y", "places", "t", "w", "l"]);
        for (name, result) in names.iter().zip(&results) {
            assert_eq!(result.as_bytes(), bytes(&format!("mixed-{name}.bin")), "{name}");
        }
        assert_eq!((results[1].shape(), results[2].shape()), (vec![2, 7], vec![]));
        assert_eq!(program.outputs()[1].shape, [Some(2), None]);
        let again =
            program.run(&[results[0].view(), TensorView::new(&k, &[5]), results[2].view(), results[3].view()]).unwrap();
        assert_eq!(again[1].shape(), [2, 7]);
    }
}

#[test]
fn threads_share_a_program() {
    let (x, y) = (Arc::new(floats("mlp-x.bin")), Arc::new(bytes("mlp-y.bin")));
    for program in mlps() {
        let program = Arc::new(program);
        let work = (0..4).map(|_| {
            let (program, x, y) = (program.clone(), x.clone(), y.clone());
            thread::spawn(move || {
                for _ in 0..50 {
                    assert_eq!(program.run(&[TensorView::new(&x[..], &[3, 64])]).unwrap()[0].as_bytes(), &y[..]);
                }
            })
        });
        work.collect::<Vec<_>>().into_iter().for_each(|t| t.join().unwrap());
    }
}

#[test]
fn wrong_inputs_are_refused() {
    let x = floats("mlp-x.bin");
    for program in mlps() {
        let narrow = program.run(&[TensorView::new(&x[..189], &[3, 63])]);
        fails(narrow, ErrorKind::Input, "input 'x' of 'mlp' has size 63 on axis 1, expected 64");
        fails(program.run(&[TensorView::new(&[0f64; 64], &[1, 64])]), ErrorKind::Input, "float32");
        fails(program.run(&[]), ErrorKind::Argument, "'mlp' has 1 inputs, 0 are given");
        fails(program.run(&[TensorView::new(&x, &[4, 64])]), ErrorKind::Argument, "is given 192 elements");
        fails(program.run(&[TensorView::new(&x, &[usize::MAX, 2])]), ErrorKind::Argument, "is given");
        let raw = vec![0u8; 257];
        let odd = usize::from(raw.as_ptr() as usize % 2 == 0);
        let odd = TensorView::from_bytes(&raw[odd..][..256], DType { code: 2, bits: 32 }, &[1, 64]);
        fails(program.run(&[odd]), ErrorKind::Input, "multiple");
    }
}

#[test]
fn what_cannot_be_loaded() {
    fails(unsafe { Library::load(at("nothing.so")) }, ErrorKind::File, "cannot be loaded");
    fails(unsafe { Library::load(at("mixed.so")) }, ErrorKind::File, "no function 'weft_api_version'");
    fails(archive("nothing.weft"), ErrorKind::File, "nothing.weft");
    fails(archive("damaged.weft"), ErrorKind::Archive, "damaged");
    fails(archive("foreign.weft"), ErrorKind::Machine, "was compiled for");
    fails(library("libweft.so").open_inside(&Options::default()), ErrorKind::Argument, "path is a null pointer");
    fails(unsafe { library("mlp.so").open(at("mlp.weft"), &Options::default()) }, ErrorKind::Argument, "opens no file");
    let half = &bytes("mlp.weft")[..9999];
    fails(unsafe { library("libweft.so").open_bytes(half, &Options::default()) }, ErrorKind::Archive, "");
}

#[test]
fn options() {
    let digest = fs::read_to_string(at("mlp.sha256")).unwrap();
    let options = Options { threads: 1, sha256: Some(digest) };
    let weft = library("libweft.so");
    assert_eq!(unsafe { weft.open(at("mlp.weft"), &options) }.unwrap().threads(), 1);
    fails(unsafe { weft.open(at("mixed.weft"), &options) }, ErrorKind::Archive, "not the expected one");
}

/// Built with the feature and linked with mlp.so.
#[cfg(feature = "linked")]
#[test]
fn linked() {
    let program = Library::linked().open_inside(&Options::default()).unwrap();
    let results = program.run(&[TensorView::new(&floats("mlp-x.bin"), &[3, 64])]).unwrap();
    assert_eq!(results[0].as_bytes(), bytes("mlp-y.bin"));
}
