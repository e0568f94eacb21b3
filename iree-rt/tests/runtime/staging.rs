//! Buffers filled piece by piece.

use iree_rt::{Code, Device, Instance, Staging};

fn devices() -> [Device; 2] {
    ["local-task", "local-sync"].map(|uri| Instance::get().unwrap().device(uri).unwrap())
}

/// Sizes of pieces: from none to more than what is sent at a time.
const SIZES: [usize; 12] =
    [0, 1, 7, 4095, 5 << 20, 3, 0, 16 << 20, (40 << 20) + 1, 64, 9 << 20, 20 << 20];

#[test]
fn every_byte_arrives_in_its_place() {
    for device in devices() {
        let total = SIZES.iter().sum();
        let mut staging = Staging::new(&device, total).unwrap();
        let mut expected = Vec::with_capacity(total);
        for (i, &size) in SIZES.iter().enumerate() {
            let place = staging.next(size).unwrap();
            assert_eq!(place.len(), size);
            assert!(place.iter().all(|&byte| byte == 0), "piece {i} is not zero");
            // Half of them, so that what was there before would show.
            for (at, byte) in place.iter_mut().enumerate().step_by(2) {
                *byte = (at ^ (i * 31)) as u8;
            }
            expected.extend_from_slice(place);
        }
        let buffer = staging.finish().unwrap();
        let mut actual = vec![0; total];
        buffer.read_into(0, &mut actual).unwrap();
        assert!(actual == expected, "{}", device.uri());
    }
}

#[test]
fn places_are_aligned_as_in_the_buffer() {
    let [device, _] = devices();
    let mut staging = Staging::new(&device, 64 << 20).unwrap();
    let mut filled = 0;
    for size in [8, 4096, 24, (15 << 20) + 40, 4096 - 72, 17 << 20] {
        let place = staging.next(size).unwrap();
        assert_eq!(place.as_ptr() as usize % 64, filled % 64, "at {filled}");
        filled += size;
    }
}

#[test]
fn it_ends_where_the_buffer_does() {
    let [device, _] = devices();
    let mut staging = Staging::new(&device, 100).unwrap();
    staging.next(60).unwrap();
    assert_eq!(staging.next(41).unwrap_err().code(), Code::OutOfRange);
    staging.next(39).unwrap();
    let error = staging.finish().unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.to_string().contains("99 of 100"), "{error}");
    // One that is given up in the middle, with a piece on its way.
    let mut staging = Staging::new(&device, 64 << 20).unwrap();
    for _ in 0..3 {
        staging.next(20 << 20).unwrap();
    }
    drop(staging);
    assert!(Staging::new(&device, 0).unwrap().finish().unwrap().is_empty());
}
