//! Vectors of a workspace in memory, with 8 bits for each number. A scan finds candidates; their order is that of the
//! vectors in the database.

use std::collections::HashMap;

use towpath_store::item_vectors::NumberedVector;

/// The range of a number of a row.
const ROW_RANGE: f32 = 127.0;
/// The range of a number of a query: a sum over 8192 dimensions still fits into 32 bits.
const QUERY_RANGE: f32 = 2047.0;
/// A prefix this long may be in the hash of a namespace that was cut; the database then decides.
const LONG_PREFIX: usize = 1390;
/// Approximate overhead of a row, for maps and allocations.
const ROW_BYTES: usize = 160;

/// The vectors of one space.
pub struct Matrix {
    dims: usize,
    /// The number of the last vector that was added.
    seq: i64,
    numbers: Vec<i8>,
    scales: Vec<f32>,
    rows: Vec<Option<RowName>>,
    /// Unused rows.
    free: Vec<usize>,
    namespaces: Vec<String>,
    namespace_ids: HashMap<String, usize>,
    /// By the number of the namespace, and the key.
    rows_of: HashMap<(usize, String), Vec<usize>>,
    bytes: usize,
}

struct RowName {
    namespace: usize,
    key: String,
}

/// A row and its approximate likeness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    likeness: f32,
    row: usize,
}

impl Matrix {
    pub fn new(dims: usize) -> Self {
        Self {
            dims,
            seq: 0,
            numbers: Vec::new(),
            scales: Vec::new(),
            rows: Vec::new(),
            free: Vec::new(),
            namespaces: Vec::new(),
            namespace_ids: HashMap::new(),
            rows_of: HashMap::new(),
            bytes: 0,
        }
    }

    pub const fn seq(&self) -> i64 {
        self.seq
    }

    /// There is nothing more up to this number.
    pub fn caught_up(&mut self, seq: i64) {
        self.seq = self.seq.max(seq);
    }

    /// Approximate memory.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a vector. The first of an item replaces all that the item had.
    pub fn add(&mut self, vector: NumberedVector) {
        self.seq = vector.seq;
        if vector.part == 0 {
            self.remove(&vector.namespace, &vector.key);
        }
        let numbers = floats(&vector.vector);
        let largest = numbers
            .iter()
            .fold(0.0_f32, |largest, number| largest.max(number.abs()));
        let norm = norm(&numbers);
        if numbers.len() != self.dims || largest == 0.0 || norm == 0.0 {
            return;
        }
        let namespace = self.namespace_id(vector.namespace);
        let row = self.free.pop().unwrap_or(self.rows.len());
        if row == self.rows.len() {
            self.rows.push(None);
            self.scales.push(0.0);
            self.numbers.resize(self.numbers.len() + self.dims, 0);
            self.bytes += self.dims + ROW_BYTES;
        }
        for (to, number) in self.numbers[row * self.dims..].iter_mut().zip(&numbers) {
            *to = (number / largest * ROW_RANGE).round() as i8;
        }
        self.scales[row] = (f64::from(largest) / norm) as f32;
        self.bytes += 2 * vector.key.len();
        self.rows_of
            .entry((namespace, vector.key.clone()))
            .or_default()
            .push(row);
        self.rows[row] = Some(RowName {
            namespace,
            key: vector.key,
        });
    }

    fn namespace_id(&mut self, namespace: String) -> usize {
        if let Some(&id) = self.namespace_ids.get(&namespace) {
            return id;
        }
        let id = self.namespaces.len();
        self.bytes += 2 * namespace.len() + ROW_BYTES;
        self.namespaces.push(namespace.clone());
        self.namespace_ids.insert(namespace, id);
        id
    }

    /// Removes the vectors of an item.
    pub fn remove(&mut self, namespace: &str, key: &str) {
        let Some(&namespace) = self.namespace_ids.get(namespace) else {
            return;
        };
        for row in self.rows_of.remove(&(namespace, key.to_owned())).unwrap_or_default() {
            self.rows[row] = None;
            self.free.push(row);
            self.bytes = self.bytes.saturating_sub(2 * key.len());
        }
    }

    /// Every row at `prefix` and below it, in any order.
    pub fn scan(&self, prefix: &str, query: &[f32]) -> Vec<Candidate> {
        let largest = query.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        if query.len() != self.dims || largest == 0.0 {
            return Vec::new();
        }
        let query: Vec<i16> = query
            .iter()
            .map(|number| (number / largest * QUERY_RANGE).round() as i16)
            .collect();
        let below = format!("{prefix}.");
        let is_below = |namespace: &String| {
            prefix.is_empty()
                || namespace == prefix
                || namespace.starts_with(&below)
                || (prefix.len() >= LONG_PREFIX && namespace.contains(".."))
        };
        let allowed: Vec<bool> = self.namespaces.iter().map(is_below).collect();
        let mut found = Vec::with_capacity(self.rows.len());
        let vectors = self.numbers.chunks_exact(self.dims);
        for (row, ((name, vector), scale)) in self.rows.iter().zip(vectors).zip(&self.scales).enumerate() {
            if name.as_ref().is_some_and(|name| allowed[name.namespace]) {
                found.push(Candidate {
                    likeness: dot(vector, &query) as f32 * scale,
                    row,
                });
            }
        }
        found
    }

    /// Namespace and key of a row, as indexes have them.
    pub fn name(&self, candidate: Candidate) -> Option<(String, String)> {
        let name = self.rows.get(candidate.row)?.as_ref()?;
        Some((self.namespaces[name.namespace].clone(), name.key.clone()))
    }
}

/// Moves the `count` best to the front, the best first.
pub fn select(candidates: &mut [Candidate], count: usize) {
    let order = |a: &Candidate, b: &Candidate| b.likeness.total_cmp(&a.likeness).then(a.row.cmp(&b.row));
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, order);
    }
    let count = count.min(candidates.len());
    candidates[..count].sort_unstable_by(order);
}

/// Integers, so that the compiler may add them in any order, many at a time.
fn dot(row: &[i8], query: &[i16]) -> i32 {
    row.iter()
        .zip(query)
        .map(|(&a, &b)| i32::from(i16::from(a)) * i32::from(b))
        .sum()
}

/// A vector as the database has it: 32-bit floats, little-endian.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    let chunks = bytes.chunks_exact(4);
    chunks
        .map(|chunk| f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]))
        .collect()
}

pub fn bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn norm(vector: &[f32]) -> f64 {
    let squares = vector.iter().map(|&number| f64::from(number) * f64::from(number));
    squares.sum::<f64>().sqrt()
}

/// The cosine of the angle between two vectors; 0 if one is all zeros.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let norms = norm(a) * norm(b);
    if norms == 0.0 {
        return 0.0;
    }
    let sum: f64 = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    sum / norms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(namespace: &str, key: &str, part: i64, seq: i64, numbers: &[f32]) -> NumberedVector {
        NumberedVector {
            namespace: namespace.to_owned(),
            key: key.to_owned(),
            part,
            seq,
            vector: bytes(numbers),
        }
    }

    fn found(matrix: &Matrix, prefix: &str, query: &[f32]) -> Vec<String> {
        let mut candidates = matrix.scan(prefix, query);
        let count = candidates.len();
        select(&mut candidates, count);
        let names = candidates.iter().filter_map(|&one| matrix.name(one));
        names.map(|(namespace, key)| format!("{namespace}/{key}")).collect()
    }

    /// Numbers that look random and are the same each time.
    fn noise(seed: u64, dims: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
        };
        // Sums of several are nearly normal.
        (0..dims).map(|_| (0..6).map(|_| next()).sum::<f32>()).collect()
    }

    #[test]
    fn rows_are_ranked_below_their_prefix() {
        let mut matrix = Matrix::new(2);
        matrix.add(vector("users.ann", "a", 0, 1, &[1.0, 0.0]));
        matrix.add(vector("users.bob", "b", 0, 2, &[0.5, 0.5]));
        matrix.add(vector("users", "c", 0, 3, &[0.0, 9.0]));
        matrix.add(vector("usersx", "d", 0, 4, &[1.0, 0.0]));
        matrix.add(vector("users", "zero", 0, 5, &[0.0, 0.0]));
        matrix.add(vector("users", "short", 0, 6, &[1.0]));
        assert_eq!(matrix.seq(), 6);
        assert_eq!(
            found(&matrix, "users", &[3.0, 0.1]),
            ["users.ann/a", "users.bob/b", "users/c"]
        );
        assert_eq!(found(&matrix, "users.bob", &[1.0, 0.0]), ["users.bob/b"]);
        assert_eq!(found(&matrix, "", &[1.0, 0.0]).len(), 4);
        assert_eq!(found(&matrix, "", &[1.0]), Vec::<String>::new());
    }

    #[test]
    fn new_vectors_replace_those_of_their_item() {
        let mut matrix = Matrix::new(2);
        matrix.add(vector("n", "a", 0, 1, &[1.0, 0.0]));
        matrix.add(vector("n", "a", 1, 2, &[0.0, 1.0]));
        matrix.add(vector("n", "b", 0, 3, &[1.0, 1.0]));
        assert_eq!(found(&matrix, "", &[1.0, 0.0]).len(), 3);
        let before = matrix.bytes();
        matrix.add(vector("n", "a", 0, 4, &[0.0, 1.0]));
        assert_eq!(found(&matrix, "", &[1.0, 0.0]), ["n/b", "n/a"]);
        matrix.remove("n", "b");
        matrix.remove("n", "missing");
        assert_eq!(found(&matrix, "", &[1.0, 0.0]), ["n/a"]);
        matrix.add(vector("n", "c", 0, 5, &[1.0, 0.0]));
        assert!(matrix.bytes() <= before, "rows are used again");
    }

    #[test]
    fn candidates_hold_the_nearest() {
        let (dims, rows, queries) = (96, 4000, 20);
        let vectors: Vec<Vec<f32>> = (0..rows).map(|seed| noise(seed + 1, dims)).collect();
        let mut matrix = Matrix::new(dims);
        for (seq, numbers) in (1..).zip(&vectors) {
            matrix.add(vector("n", &(seq - 1).to_string(), 0, seq, numbers));
        }
        let mut hits = 0;
        for query in 0..queries {
            let query = noise(1_000_000 + query, dims);
            let mut exact: Vec<(f64, usize)> = vectors.iter().map(|one| cosine(one, &query)).zip(0..).collect();
            exact.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut candidates = matrix.scan("", &query);
            select(&mut candidates, 64);
            let names: Vec<String> = candidates[..64]
                .iter()
                .filter_map(|&one| matrix.name(one))
                .map(|(_, key)| key)
                .collect();
            hits += exact[..10]
                .iter()
                .filter(|(_, row)| names.contains(&row.to_string()))
                .count();
        }
        assert_eq!(hits, 200, "of the ten nearest for each of 20 queries");
    }

    #[test]
    fn floats_are_kept() {
        let vector = [1.5, -0.25, f32::MIN_POSITIVE];
        assert_eq!(floats(&bytes(&vector)), vector);
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 0.0]), 0.0);
    }
}
