//! The unpacker, on archives that look almost right.

mod bodies;

/// What the fuzz target begins with.
const SEEDS: [&[u8]; 4] = [
    include_bytes!("fuzzed/seeds/tarball/gnu.tar"),
    include_bytes!("fuzzed/seeds/tarball/pax.tar"),
    include_bytes!("fuzzed/seeds/tarball/ustar.tar"),
    include_bytes!("fuzzed/seeds/tarball/sparse.tar"),
];

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    /// One below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end.max(1) as u64).unwrap()
    }
}

/// Some bytes changed, doubled, left out or put in; and a header's sum made right again, without which all of it would
/// be refused at once.
fn changed(seed: &[u8], numbers: &mut Random) -> Vec<u8> {
    let mut whole = seed.to_vec();
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(whole.len());
        match numbers.below(5) {
            0 => whole.truncate(at),
            1 => {
                let block = whole[at / 512 * 512..].iter().copied().take(512).collect::<Vec<_>>();
                let place = numbers.below(whole.len() / 512 + 1) * 512;
                whole.splice(place..place, block);
            }
            _ if at < whole.len() => whole[at] = u8::try_from(numbers.below(256)).unwrap(),
            _ => {}
        }
    }
    for block in whole.chunks_exact_mut(512) {
        if block[257..].starts_with(b"ustar") {
            let mut header = tar::Header::from_byte_slice(block).clone();
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
    }
    whole
}

#[test]
fn archives_that_are_almost_right_write_nothing_else() {
    let mut numbers = Random(20_260_301);
    for seed in SEEDS {
        bodies::tarball(seed);
        for _ in 0..250 {
            bodies::tarball(&changed(seed, &mut numbers));
        }
    }
}
