//! Weights: from the checkpoint's tensors to device memory, packed once and mapped ever after.

mod image;
mod pack;

use std::collections::HashMap;
use std::path::Path;

use checkpoint::{Checkpoint, FileStamp};
use iree_rt::{Buffer, BufferView, Device, Staging, Upload};
use memmap2::Mmap;

use self::image::{Image, Plane, Planes};
use self::pack::{Output, pack};
use super::{element_type, iree};
use crate::cache::{Cache, Key, Kind, Label, WeightsKeyParts, Writer};
use crate::emit::WeightSpec;
use crate::opening::{Event, SessionOptions};
use crate::{Error, LoadMode, Result};

/// Every weight of a model on its device, by how it is made.
pub(super) struct Weights {
    /// The planes of each.
    views: HashMap<WeightSpec, Vec<BufferView>>,
    /// Bytes of device memory.
    pub bytes: u64,
}

impl Weights {
    /// Numbers that nobody trained, for checks: each weight's planes, as `make` has them.
    pub fn made_up(
        specs: &[WeightSpec],
        make: impl Fn(&WeightSpec) -> iree_rt::Result<Vec<BufferView>>,
    ) -> iree_rt::Result<Self> {
        let views = specs.iter().map(|spec| Ok((spec.clone(), make(spec)?)));
        Ok(Self { views: views.collect::<iree_rt::Result<_>>()?, bytes: 0 })
    }

    /// A tensor of a weight, by its number in [`WeightSpec::planes`].
    ///
    /// # Panics
    ///
    /// When it is none of the weights that were loaded, or has no such tensor.
    pub fn plane(&self, spec: &WeightSpec, number: usize) -> &BufferView {
        &self.views[spec][number]
    }
}

/// Loads `specs`, each once, of the model called `model`: from the cache if it has them, else
/// packed now, into the cache if it takes them.
///
/// # Errors
///
/// A tensor that is missing or of the wrong shape, or no memory.
pub(super) fn load(
    device: &Device,
    checkpoint: &Checkpoint,
    specs: &[WeightSpec],
    model: &str,
    options: &SessionOptions,
) -> Result<Weights> {
    let image = Image::new(specs);
    let (buffer, planes) = match kept(checkpoint, &image, model, options)? {
        Some((map, planes)) if device.is_local() => (Buffer::import(device, map), planes),
        Some((map, planes)) => {
            let mut staging = Staging::new(device, map.len())
                .map_err(iree("allocating memory for the weights"))?;
            copy(&map, &mut staging)?;
            (staging.finish(), planes)
        }
        None if !device.is_local() => {
            let mut staging = Staging::new(device, image.bytes)
                .map_err(iree("allocating memory for the weights"))?;
            let planes = pack(checkpoint, &image, options, &mut staging)?;
            (staging.finish(), planes)
        }
        None => {
            let upload = Upload::new(device, image.bytes)
                .map_err(iree("allocating memory for the weights"))?;
            let mut memory = Memory { upload, filled: 0 };
            let planes = pack(checkpoint, &image, options, &mut memory)?;
            (memory.upload.finish(), planes)
        }
    };
    let buffer = buffer.map_err(iree("uploading the weights"))?;
    let bytes = image::bytes(&planes) as u64;
    let mut views = HashMap::with_capacity(specs.len());
    for (spec, planes) in specs.iter().zip(planes) {
        let view = |plane: &Plane| {
            let part = buffer.subspan(plane.offset..plane.offset + plane.bytes)?;
            part.view(&plane.ty.dims, element_type(plane.ty.element))
        };
        let views_of = planes.iter().map(view).collect::<iree_rt::Result<_>>();
        views.insert(spec.clone(), views_of.map_err(iree("viewing a weight"))?);
    }
    Ok(Weights { views, bytes })
}

/// What tells these weights of `checkpoint` from all others; `None` where the file system does not say when
/// a file was changed.
pub(super) fn key(checkpoint: &Checkpoint, specs: &[WeightSpec]) -> Option<Key> {
    key_of(checkpoint, &Image::new(specs))
}

fn key_of(checkpoint: &Checkpoint, image: &Image<'_>) -> Option<Key> {
    let files: Vec<_> = checkpoint.files().collect();
    let (image, encoding) = (image.describe(), checkpoint.encoding());
    let encoding = encoding.as_deref();
    Key::weights(&WeightsKeyParts { image: &image, encoding, files: &files })
}

/// Memory of this process alone.
struct Memory {
    upload: Upload,
    filled: usize,
}

impl Output for Memory {
    fn next(&mut self, bytes: usize) -> Result<&mut [u8]> {
        let start = self.filled;
        self.filled += bytes;
        Ok(&mut self.upload[start..self.filled])
    }
}

impl Output for Staging {
    fn next(&mut self, bytes: usize) -> Result<&mut [u8]> {
        Self::next(self, bytes).map_err(iree("uploading the weights"))
    }
}

/// Sends what `map` has, and gives back its pages.
fn copy(map: &Mmap, staging: &mut Staging) -> Result<()> {
    const PART: usize = 8 << 20;
    for (i, part) in map.chunks(PART).enumerate() {
        Output::next(staging, part.len())?.copy_from_slice(part);
        #[cfg(target_os = "linux")]
        {
            // SAFETY: the mapping is of a file that nobody writes: pages come back with the same bytes.
            let _ = unsafe {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                map.unchecked_advise_range(advice, i * PART, part.len())
            };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = i;
    }
    Ok(())
}

impl Output for Writer<'_> {
    fn next(&mut self, bytes: usize) -> Result<&mut [u8]> {
        Self::next(self, bytes)
    }
}

/// The image as a file of the cache, packed now if it is not there; `None` where there is to be no
/// such file, or there cannot be one.
fn kept(
    checkpoint: &Checkpoint,
    image: &Image<'_>,
    model: &str,
    options: &SessionOptions,
) -> Result<Option<(Mmap, Planes)>> {
    let keep = options.weights_cache && options.load_mode != LoadMode::Random;
    let Some(folder) = options.cache_dir.as_ref().filter(|_| keep) else {
        return Ok(None);
    };
    match map(folder, checkpoint, image, model, options) {
        // A start does not fail for want of a cache.
        Err(error @ Error::Cache { .. }) => {
            let reason = error.to_string();
            options.notify(Event::NotKept { what: "packed weights".into(), reason });
            Ok(None)
        }
        result => result,
    }
}

fn map(
    folder: &Path,
    checkpoint: &Checkpoint,
    image: &Image<'_>,
    model: &str,
    options: &SessionOptions,
) -> Result<Option<(Mmap, Planes)>> {
    let Some(key) = key_of(checkpoint, image) else { return Ok(None) };
    let mut sources: Vec<FileStamp> = checkpoint.files().collect();
    for source in &mut sources {
        source.path = std::path::absolute(&source.path).map_err(Error::io(&source.path))?;
    }
    let name = options.precision.as_str().to_owned();
    let label =
        Label { kind: Kind::Weights, name, model: model.to_owned(), sources, ..Label::default() };
    let mut made = false;
    let found = Cache::open(folder)?.get_or_make(&key, &label, |writer| {
        writer.expect(image.bytes as u64)?;
        pack(checkpoint, image, options, writer)?;
        made = true;
        Ok(())
    })?;
    // SAFETY: the mapping is only read, and nobody writes to the file: entries of the cache are
    // replaced by renaming, and a removed one lives as long as it is mapped. Its length was just
    // verified. That nothing but this program changes files in the cache's folder is what the
    // option `weights_cache` asks for and documents.
    let map = unsafe { Mmap::map(&found.file) }.map_err(Error::io(folder))?;
    let planes = image.planes(&map).ok_or_else(|| Error::Cache {
        path: found.path.clone(),
        message: "these packed weights are damaged: remove the file".into(),
    })?;
    if made {
        options.notify(Event::WeightsKept { path: found.path, bytes: map.len() as u64 });
    }
    Ok(Some((map, planes)))
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::Precision;
    use crate::emit::{Format, WeightFormats};
    use crate::lower::cpu::{CpuTarget, program};
    use crate::lower::cuda::{self, CudaTiles};
    use checkpoint::config::ModelConfig;
    use kernels::quantise;
    use kernels::{Isa, LANES};

    impl Output for (Vec<u8>, usize) {
        fn next(&mut self, bytes: usize) -> Result<&mut [u8]> {
            let start = self.1;
            self.1 += bytes;
            self.0.resize(self.1, 0);
            Ok(&mut self.0[start..])
        }
    }

    fn fixture(name: &str) -> (ModelConfig, Checkpoint) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let config = ModelConfig::from_dir(&folder).unwrap();
        (config, Checkpoint::open(&folder, LoadMode::Mmap).unwrap())
    }

    /// Whose layouts.
    #[derive(Debug, Clone, Copy)]
    enum Of {
        Gpus,
        /// Whether floats are compressed, and whether an output projection of them has a sketch.
        Cpus {
            compress: bool,
            sketch: bool,
        },
    }

    /// Every layout but compressed ones, whose size only packing knows.
    const PLAIN: [Of; 3] = [
        Of::Gpus,
        Of::Cpus { compress: false, sketch: false },
        Of::Cpus { compress: false, sketch: true },
    ];

    /// The weights of a model, as its graphs take them.
    fn specs(config: &ModelConfig, formats: &WeightFormats, of: Of) -> Vec<WeightSpec> {
        match of {
            Of::Gpus => {
                crate::lower::paged::weights(&cuda::graphs(config, formats, &CudaTiles::portable()))
            }
            Of::Cpus { compress, sketch } => {
                let target = CpuTarget::new(Isa::Portable, 1)
                    .with_compression(compress)
                    .with_sketch_from(if sketch { 0 } else { usize::MAX });
                program(config, formats, &target, 8, 8).weights()
            }
        }
    }

    /// As for a device whose memory is not the host's.
    #[test]
    fn what_goes_up_in_pieces_is_the_image() {
        let (config, checkpoint) = fixture("llama-llama3-biases-mqa-f16");
        let device = iree_rt::Instance::get().unwrap().device("local-task").unwrap();
        let options = SessionOptions::default();
        for (precision, of) in
            Precision::ALL.into_iter().flat_map(|(_, it)| PLAIN.map(|of| (it, of)))
        {
            let formats = WeightFormats::new(precision, &config, &checkpoint);
            let specs = specs(&config, &formats, of);
            let image = Image::new(&specs);
            let mut expected = (Vec::new(), 0);
            let planes = pack(&checkpoint, &image, &options, &mut expected).unwrap();
            assert_eq!(expected.0.len(), image.bytes);
            assert_eq!(image.planes(&expected.0), Some(planes));
            let mut staging = Staging::new(&device, image.bytes).unwrap();
            pack(&checkpoint, &image, &options, &mut staging).unwrap();
            let mut actual = vec![0; image.bytes];
            staging.finish().unwrap().read_into(0, &mut actual).unwrap();
            assert!(actual == expected.0, "{precision:?} {of:?}");

            // And from a file of the cache.
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, &actual).unwrap();
            // SAFETY: nobody else has the file.
            let map = unsafe { Mmap::map(&file).unwrap() };
            let mut staging = Staging::new(&device, map.len()).unwrap();
            copy(&map, &mut staging).unwrap();
            let mut actual = vec![0; image.bytes];
            staging.finish().unwrap().read_into(0, &mut actual).unwrap();
            assert!(actual == expected.0, "{precision:?} {of:?} from a file");
        }
    }

    /// Its blocks come back as those of the image that is not compressed, in fewer bytes; and a
    /// table that cannot be is noticed.
    #[test]
    fn compressed_images_hold_the_same_weights() {
        let (config, checkpoint) = fixture("llama-gqa-long-bf16");
        let options = SessionOptions::default();
        for precision in [Precision::Stored, Precision::F32] {
            let formats = WeightFormats::new(precision, &config, &checkpoint);
            let [compressed, plain] = [true, false]
                .map(|compress| specs(&config, &formats, Of::Cpus { compress, sketch: false }));
            let images = [&compressed, &plain].map(|specs| {
                let image = Image::new(specs);
                let mut bytes = (Vec::new(), 0);
                let planes = pack(&checkpoint, &image, &options, &mut bytes).unwrap();
                assert_eq!(image.planes(&bytes.0).as_ref(), Some(&planes));
                (bytes.0, planes)
            });
            let [(compressed_bytes, compressed_planes), (plain_bytes, plain_planes)] = &images;
            let (mut matrices, mut bytes, mut all) = (0, 0, 0);
            for ((spec, compressed), plain) in
                compressed.iter().zip(compressed_planes).zip(plain_planes)
            {
                let [values, begins] = &compressed[..] else { continue };
                matrices += 1;
                bytes += values.bytes;
                all += plain[0].bytes;
                let plain = &plain_bytes[plain[0].offset..][..plain[0].bytes];
                let block_bytes = spec.format.block_bytes(spec.columns);
                let begins = &compressed_bytes[begins.offset..][..begins.bytes];
                for (begin, plain) in
                    begins.as_chunks().0.iter().zip(plain.chunks_exact(block_bytes))
                {
                    let begin = values.offset + u64::from_le_bytes(*begin) as usize;
                    let mut block = vec![0; block_bytes];
                    let from = &compressed_bytes[begin..];
                    kernels::decompress(spec.format, from, spec.columns, &mut block);
                    assert!(block == plain, "{precision:?} {spec:?}");
                }
            }
            assert_eq!(matrices, 4 * config.num_hidden_layers + 1);
            // Small blocks: headers and escapes are more of them than of large ones.
            assert!(bytes * 100 < all * 82, "{precision:?}: {bytes} of {all} bytes");

            let image = Image::new(&compressed);
            let begins =
                compressed_planes.iter().find(|planes| planes.len() > 1).unwrap()[1].offset;
            let end = compressed_bytes.len();
            for at in [end - 1, end - 9, begins + 7] {
                let mut damaged = compressed_bytes.clone();
                damaged[at] ^= 0x40;
                assert_eq!(image.planes(&damaged), None, "{at} of {end}");
            }
        }
    }

    /// Whatever packing rounds, a sketch is of what lies beside it.
    #[test]
    fn sketches_are_of_the_weights_beside_them() {
        for name in ["llama-mha-f32", "llama-gqa-long-bf16", "llama-llama3-biases-mqa-f16"] {
            let (config, checkpoint) = fixture(name);
            for precision in [Precision::Stored, Precision::F32, Precision::Bf16] {
                let formats = WeightFormats::new(precision, &config, &checkpoint);
                let specs = specs(&config, &formats, Of::Cpus { compress: false, sketch: true });
                let image = Image::new(&specs);
                let mut bytes = (Vec::new(), 0);
                let planes =
                    pack(&checkpoint, &image, &SessionOptions::default(), &mut bytes).unwrap();
                let plane = |plane: &Plane| &bytes.0[plane.offset..][..plane.bytes];
                let sketch = specs.iter().position(|spec| spec.errors().is_some()).unwrap();
                let spec = &specs[sketch];
                let of = |it: &WeightSpec| it.parts == spec.parts && it.layout != spec.layout;
                let matrix = plane(&planes[specs.iter().position(of).unwrap()][0]);
                let [blocks, errors] = [0, 1].map(|number| plane(&planes[sketch][number]));
                let format = spec.format;
                let element = |bytes: &[u8]| match format {
                    Format::F32 => bytemuck::pod_read_unaligned::<f32>(bytes),
                    Format::F16 => bytemuck::pod_read_unaligned::<half::f16>(bytes).to_f32(),
                    _ => bytemuck::pod_read_unaligned::<half::bf16>(bytes).to_f32(),
                };
                let stored = matrix.chunks(format.block_bytes(spec.columns));
                let sketches = blocks.chunks(quantise::SKETCH.block_bytes(spec.columns));
                let errors = errors.chunks(LANES * size_of::<f32>());
                assert_eq!(stored.len(), spec.rows().div_ceil(LANES));
                for (number, ((stored, sketch), errors)) in
                    stored.zip(sketches).zip(errors).enumerate()
                {
                    let size = stored.len() / spec.columns / LANES;
                    let real = LANES.min(spec.rows() - number * LANES);
                    let rows: Vec<Vec<f32>> = (0..real)
                        .map(|lane| {
                            stored.chunks(size).skip(lane).step_by(LANES).map(element).collect()
                        })
                        .collect();
                    let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                    let (mut expected, mut of_rows) = (vec![0; sketch.len()], [0.0; LANES]);
                    quantise::sketch_block(&rows, &mut expected, &mut of_rows);
                    assert!(sketch == expected, "{name} {precision:?} {number}");
                    assert_eq!(
                        errors,
                        bytemuck::cast_slice::<f32, u8>(&of_rows),
                        "{name} {precision:?}"
                    );
                }
            }
        }
    }

    /// What a cache holds is found by this version: other bytes need another one.
    #[test]
    fn images_of_this_version_have_these_bytes() {
        const EXPECTED: [(u32, Precision, &str); 5] = [
            (
                6,
                Precision::Stored,
                "f4db5eae40719b7c7ab9a158107d45311b3d70a50a1b0c204b49b913871bbb71",
            ),
            (6, Precision::F32, "7e54591b57e19394b6b8bcdc8e8011231228c9edd75ac078f6ffb5d46a428d61"),
            (
                6,
                Precision::Bf16,
                "83d8da7feffcbaeef63ad4a4162b40859edceb50da8d177ef32491d2bda33bf5",
            ),
            (
                6,
                Precision::Int8,
                "a7a8f3292673a3f1356f50376194427eff0e6ea5e0f4bfa335adac09f54869e6",
            ),
            (
                6,
                Precision::Int4,
                "ace6ed72d6acaaeab0a77d722c3705d59479ad44b9d11e4a01f5948d0e189cc8",
            ),
        ];
        let (config, checkpoint) = fixture("llama-llama3-biases-mqa-f16");
        let actual = EXPECTED.map(|(_, precision, _)| {
            let formats = WeightFormats::new(precision, &config, &checkpoint);
            let mut digest = Sha256::new();
            let compressed = Of::Cpus { compress: true, sketch: true };
            for of in PLAIN.into_iter().chain([compressed]) {
                let specs = specs(&config, &formats, of);
                let (image, options) = (Image::new(&specs), SessionOptions::default());
                let mut bytes = (Vec::new(), 0);
                pack(&checkpoint, &image, &options, &mut bytes).unwrap();
                digest.update(&bytes.0[..bytes.1]);
            }
            let digest: String =
                digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            (image::VERSION, precision, digest)
        });
        let expected = EXPECTED.map(|(version, precision, it)| (version, precision, it.to_owned()));
        assert_eq!(actual, expected, "raise `VERSION` in image.rs, then state both here");
    }
}
