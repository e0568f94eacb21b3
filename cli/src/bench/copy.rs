//! Copies within a device's memory: how fast it reads and writes, which bounds what models do.

use std::time::Instant;

use iree_rt::{Buffer, Code, Device, Result};

/// Bytes of each of the two buffers; halved while the device has no room for them.
const MOST: usize = 512 << 20;
/// Less fits into caches.
const LEAST: usize = 64 << 20;
/// Copies of each size, of which the median counts.
const REPEAT: usize = 5;

/// Bytes a second that `device` reads and writes while it copies, both counted.
///
/// What a copy costs whatever its size (handing it over, waiting for it) is not in it: that is the
/// difference between copies of two sizes.
///
/// # Errors
///
/// Those of the device; it has no room for two buffers of 64 MiB.
pub fn bytes_per_second(device: &Device) -> Result<f64> {
    let mut bytes = if device.is_local() { LEAST } else { MOST };
    let (mut from, mut to) = loop {
        let from = Buffer::allocate(device, bytes);
        match from.and_then(|from| Ok((from, Buffer::allocate(device, bytes)?))) {
            Err(error) if error.code() == Code::ResourceExhausted && bytes > LEAST => bytes /= 2,
            pair => break pair?,
        }
    };
    // Memory that nobody has written may not be there yet.
    from.fill(0..bytes, 1u32)?;
    to.fill(0..bytes, 2u32)?;
    let mut seconds = |bytes| -> Result<f64> {
        let mut all = Vec::with_capacity(REPEAT);
        for _ in 0..REPEAT {
            let start = Instant::now();
            to.copy_from(0, &from, 0, bytes)?;
            all.push(start.elapsed().as_secs_f64());
        }
        all.sort_by(f64::total_cmp);
        Ok(all[REPEAT / 2])
    };
    let (whole, half) = (seconds(bytes)?, seconds(bytes / 2)?);
    // Where others keep the machine busy, half may have taken nearly as long, or longer: their difference is nothing then.
    let (copied, took) = match half < 0.75 * whole {
        true => (bytes - bytes / 2, whole - half),
        false => (bytes, whole),
    };
    Ok(2.0 * copied as f64 / took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_a_rate() {
        let device = iree_rt::Instance::get().unwrap().device("local-sync").unwrap();
        let rate = bytes_per_second(&device).unwrap();
        assert!(rate.is_finite() && rate > 1e6, "{rate}");
    }
}
