//! One vector of the hidden states of a text: what embedding models are for.

use crate::engine::Want;

/// Which hidden states a vector is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token.
    Last,
    /// The mean of all.
    Mean,
    /// That of the first token.
    Cls,
}

/// A vector in the making, while a text is run piece by piece.
#[derive(Debug)]
pub(crate) struct Pool {
    pooling: Pooling,
    states: usize,
    sum: Vec<f64>,
}

impl Pooling {
    /// Whether the text before the last token has to be run, though the prefix cache may have it.
    pub(crate) fn needs_all(self) -> bool {
        self != Self::Last
    }

    /// What is wanted of the tokens from `start` to `end` of a text of `length` tokens.
    pub(crate) fn want(self, start: usize, end: usize, length: usize) -> Want {
        match self {
            Self::Last if end == length => Want::Hidden,
            Self::Mean => Want::AllHidden,
            Self::Cls if start == 0 => Want::AllHidden,
            Self::Last | Self::Cls => Want::Nothing,
        }
    }
}

impl Pool {
    pub fn new(pooling: Pooling) -> Self {
        Self { pooling, states: 0, sum: Vec::new() }
    }

    /// Takes what came of a piece, `[states, width]`: what [`Pooling::want`] wants of it.
    pub fn add(&mut self, states: &[f32], width: usize) {
        self.sum.resize(width, 0.0);
        let most = if self.pooling == Pooling::Mean { usize::MAX } else { 1 };
        // One after the other: the sum is the same wherever the text was cut.
        for state in states.chunks_exact(width).take(most) {
            self.states += 1;
            self.sum.iter_mut().zip(state).for_each(|(sum, &x)| *sum += f64::from(x));
        }
    }

    /// The vector, `[width]`.
    pub fn finish(self) -> Vec<f32> {
        let states = self.states.max(1) as f64;
        self.sum.into_iter().map(|sum| (sum / states) as f32).collect()
    }
}

/// `vector` of length 1.
pub fn normalize(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    // As PyTorch's `normalize`: nothing becomes infinite.
    let length = square.sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector of three tokens, in pieces of `size`.
    fn vector(pooling: Pooling, size: usize) -> Vec<f32> {
        let states = [[1.0, 2.0], [3.0, 4.0], [8.0, 12.0]];
        let mut pool = Pool::new(pooling);
        for start in (0..3).step_by(size) {
            let end = 3.min(start + size);
            match pooling.want(start, end, 3) {
                Want::AllHidden => pool.add(states[start..end].as_flattened(), 2),
                Want::Hidden => pool.add(&states[end - 1], 2),
                _ => {}
            }
        }
        pool.finish()
    }

    #[test]
    fn poolings_are_what_they_are_called() {
        for size in 1..=3 {
            assert_eq!(vector(Pooling::Last, size), [8.0, 12.0]);
            assert_eq!(vector(Pooling::Cls, size), [1.0, 2.0]);
            assert_eq!(vector(Pooling::Mean, size), [4.0, 6.0]);
        }
        let mut vector = [3.0, -4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, -0.8]);
        let mut nothing = [0.0; 2];
        normalize(&mut nothing);
        assert_eq!(nothing, [0.0; 2]);
    }
}
