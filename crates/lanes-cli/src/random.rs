//! Numbers that depend on what they are for and on nothing else: the same stream, turn and element get the same value
//! however the run is scheduled.

/// splitmix64 (Steele, Lea, Flood 2014): a counter through a mixing function.
pub struct Random(u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Random {
    /// The generator of one purpose, named by `words` (a seed, an input, a stream, a turn).
    pub fn of(words: &[u64]) -> Self {
        Self(
            words
                .iter()
                .fold(0x6C61_6E65_7321, |state, word| mix(state ^ mix(word.wrapping_add(0x9E37_79B9_7F4A_7C15)))),
        )
    }

    /// 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `1..=most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        1 + self.bits() % most
    }

    /// Two independent standard normal values (Box and Muller 1958).
    pub fn normal_pair(&mut self) -> (f64, f64) {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.unit();
        (radius * angle.cos(), radius * angle.sin())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_their_own_numbers() {
        let first = |words: &[u64]| Random::of(words).bits();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        let mut seen: Vec<u64> =
            (0..50).flat_map(|a| (0..50).map(move |b| (a, b))).map(|(a, b)| first(&[a, b])).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 2500);
    }

    #[test]
    fn normal_values_have_the_moments_of_the_distribution() {
        let mut random = Random::of(&[7]);
        let values: Vec<f64> = (0..20_000).flat_map(|_| <[f64; 2]>::from(random.normal_pair())).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        let kurtosis = values.iter().map(|v| (v - mean).powi(4)).sum::<f64>() / n / variance.powi(2);
        // Five standard errors of each moment at 40,000 samples.
        assert!(mean.abs() < 0.025 && (variance - 1.0).abs() < 0.036 && (kurtosis - 3.0).abs() < 0.13);
    }
}
