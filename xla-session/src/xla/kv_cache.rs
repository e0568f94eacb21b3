//! The KV cache on the device, and the rope tables that are as long as it is.

use checkpoint::config::ModelConfig;
use iree_rt::{Buffer, BufferView, Device};

use super::{element_type, iree};
use crate::Result;
use crate::emit::builder::TensorType;
use crate::emit::{ElementType, KV_BLOCK};

/// Blocks behind those that are needed, at least, when memory is taken.
const ROOM: usize = 4;

/// Keys and values of every layer. Capacity doubles when it runs out; a call is given views of the
/// blocks that it uses only.
pub(super) struct KvCache {
    device: Device,
    /// The keys and the values of a layer, as the graphs take them; the first extent is the number
    /// of blocks.
    layer: [TensorType; 2],
    /// Keys and values of each layer, as many blocks as the views say that there is memory for.
    layers: Vec<[Buffer; 2]>,
    /// Blocks that were cleared, the first ones: those behind them were not touched, and the system
    /// has given no memory for them yet.
    touched: usize,
    /// What `layers` has outgrown and not taken over, of as many blocks.
    outgrown: (Vec<[Buffer; 2]>, usize),
    /// Blocks that will ever be needed.
    most: usize,
    /// The capacities that there may be, in blocks, fewest first; any when there are none.
    capacities: Vec<usize>,
    views: Views,
}

/// What a call is given.
#[derive(Default)]
pub(super) struct Views {
    /// Blocks in the views; 0 before the first call.
    pub blocks: usize,
    /// Keys and values of each layer, over these blocks.
    pub layers: Vec<[BufferView; 2]>,
    /// Blocks that there is memory for.
    pub capacity: usize,
    /// Keys and values of each layer, over all of it.
    pub whole: Vec<[BufferView; 2]>,
    /// Every position as an i32, [`STRIDE`] bytes apart; of caches with fixed capacities.
    positions: Option<Buffer>,
    /// Cosines and sines, over the whole capacity.
    pub rope: Option<[BufferView; 2]>,
    /// Changes whenever a view does.
    pub generation: u64,
}

/// Bytes between two positions: views of the device's memory begin at multiples of this.
const STRIDE: usize = iree_rt::buffer::ALIGNMENT;

impl Views {
    /// The memory that holds the number `position`.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn position(&self, position: usize) -> iree_rt::Result<BufferView> {
        let positions = self.positions.as_ref().ok_or_else(|| {
            let message = "this KV cache has no table of positions";
            iree_rt::Error::new(iree_rt::Code::Internal, message)
        })?;
        let at = position * STRIDE;
        positions.subspan(at..at + size_of::<i32>())?.view(&[], iree_rt::ElementType::I32)
    }
}

impl KvCache {
    /// An empty cache for at most `context` tokens, and `padding` behind them; `layer` are the keys
    /// and the values of a layer, whose first extent is the number of blocks. Its capacity is one of
    /// `capacities`, blocks, where there are any.
    pub fn new(
        device: &Device,
        layer: [TensorType; 2],
        context: usize,
        padding: usize,
        capacities: &[usize],
    ) -> Self {
        Self {
            device: device.clone(),
            layer,
            layers: Vec::new(),
            touched: 0,
            outgrown: (Vec::new(), 0),
            most: (context + padding).div_ceil(KV_BLOCK),
            capacities: capacities.to_vec(),
            views: Views::default(),
        }
    }

    /// Whether there is room for `tokens` tokens.
    pub fn holds(&self, tokens: usize) -> bool {
        tokens <= self.views.capacity * KV_BLOCK
    }

    /// Makes room for `tokens` tokens; returns whether that took new memory. What the cache held it
    /// holds again after [`take_over`](Self::take_over).
    ///
    /// # Errors
    ///
    /// No memory on the device; the cache is as it was.
    pub fn reserve(&mut self, config: &ModelConfig, tokens: usize) -> Result<bool> {
        let blocks = tokens.div_ceil(KV_BLOCK);
        let grow = blocks > self.views.capacity;
        if grow {
            self.grow(config, blocks)?;
        }
        Ok(grow)
    }

    /// Whether it holds less than the f32 that it is given.
    pub fn rounds(&self) -> bool {
        self.layer[0].element != ElementType::F32
    }

    /// Forgets everything, memory included.
    pub fn clear(&mut self) {
        self.layers.clear();
        self.outgrown.0.clear();
        self.touched = 0;
        self.views = Views { generation: self.views.generation, ..Views::default() };
    }

    /// Views of the blocks that hold `tokens` tokens, for which there is room.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn views(&mut self, tokens: usize) -> Result<&Views> {
        let blocks = tokens.div_ceil(KV_BLOCK);
        if blocks != self.views.blocks {
            if blocks > self.touched {
                // Rows that no token has written are masked, but they enter the arithmetic that IREE
                // generates: NaN would spread. A cache that calls are given whole is cleared whole:
                // later the host would wait, with steps in flight.
                let end = if self.capacities.is_empty() { blocks } else { self.views.capacity };
                let range = self.touched * self.block_bytes()..end * self.block_bytes();
                for buffer in self.layers.iter().flatten() {
                    // SAFETY: no call has been given a view of these blocks; of one that is given
                    // the whole cache, none has been started since it grew.
                    let cleared = unsafe { buffer.fill_unchecked(range.clone(), 0u32) };
                    cleared.map_err(iree("clearing the KV cache"))?;
                }
                self.touched = end;
            }
            self.views.layers = self.first(&self.layers, blocks)?;
            self.views.blocks = blocks;
            self.views.generation += 1;
        }
        Ok(&self.views)
    }

    /// Views of the first blocks of every layer.
    fn first(&self, layers: &[[Buffer; 2]], blocks: usize) -> Result<Vec<[BufferView; 2]>> {
        let of_blocks =
            |ty: &TensorType| ([&[blocks], &ty.dims[1..]].concat(), element_type(ty.element));
        let [keys, values] = self.layer.each_ref().map(of_blocks);
        let view = |buffer: &Buffer, (dims, element): &(Vec<usize>, _)| {
            buffer.view(dims, *element).map_err(iree("viewing the KV cache"))
        };
        layers.iter().map(|[k, v]| Ok([view(k, &keys)?, view(v, &values)?])).collect()
    }

    /// Moves what the cache held into the memory that [`reserve`](Self::reserve) took, and gives the
    /// old memory back, a layer at a time: nobody else may still hold views of it.
    ///
    /// # Errors
    ///
    /// The device's; what the cache held may be lost.
    pub fn take_over(&mut self) -> Result<()> {
        let bytes = self.outgrown.1 * self.block_bytes();
        for (old, new) in self.outgrown.0.drain(..).zip(&self.layers) {
            for (old, new) in old.iter().zip(new) {
                // SAFETY: no call has been given the new memory yet.
                let moved = unsafe { new.copy_from_unchecked(0, old, 0, bytes) };
                moved.map_err(iree("moving the KV cache"))?;
            }
        }
        Ok(())
    }

    fn grow(&mut self, config: &ModelConfig, blocks: usize) -> Result<()> {
        // Room for an answer: the first token behind a long prompt would copy all of it.
        let roomy = blocks + (blocks / 4).max(ROOM);
        // Capacities that are given are as far apart already.
        let doubled = if self.capacities.is_empty() { 2 * self.views.capacity } else { 0 };
        let capacity = roomy.max(doubled).min(self.most.max(blocks));
        let fixed = self.capacities.iter().copied().find(|&it| it >= capacity);
        let capacity = fixed.unwrap_or(capacity);
        let bytes = capacity * self.block_bytes();
        let tables = config.rope_tables(0..capacity * KV_BLOCK);
        let rope = |table: &[f32]| {
            BufferView::new(&self.device, &[capacity * KV_BLOCK, config.head_dim / 2], table)
                .map_err(iree("uploading the rope tables"))
        };
        let rope = [rope(&tables.cos)?, rope(&tables.sin)?];
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for _ in 0..config.num_hidden_layers {
            let context = format!("growing the KV cache to {} tokens", capacity * KV_BLOCK);
            let allocate = || Buffer::allocate(&self.device, bytes).map_err(iree(&context));
            layers.push([allocate()?, allocate()?]);
        }
        if fixed.is_some() {
            let positions = self.positions(capacity * KV_BLOCK)?;
            self.views.whole = self.first(&layers, capacity)?;
            self.views.positions = Some(positions);
        }
        self.outgrown = (std::mem::replace(&mut self.layers, layers), self.touched);
        self.views.capacity = capacity;
        self.views.rope = Some(rope);
        self.views.layers.clear();
        self.views.blocks = 0;
        Ok(())
    }

    /// The numbers up to `n`, [`STRIDE`] bytes apart.
    fn positions(&self, n: usize) -> Result<Buffer> {
        let apart = STRIDE / size_of::<i32>();
        let mut table = vec![0i32; n * apart];
        for (position, row) in table.chunks_exact_mut(apart).enumerate() {
            row[0] = position as i32;
        }
        let buffer = Buffer::allocate(&self.device, n * STRIDE);
        let mut buffer = buffer.map_err(iree("making room for positions"))?;
        buffer.write(0, &table).map_err(iree("uploading positions"))?;
        Ok(buffer)
    }

    /// Bytes of a block of the keys of a layer, and of its values.
    fn block_bytes(&self) -> usize {
        let [keys, _] = &self.layer;
        keys.dims[1..].iter().product::<usize>() * keys.element.bytes()
    }
}
