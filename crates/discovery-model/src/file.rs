//! The format of a model file. All numbers are in little endian.
//!
//! 1. `sentence-model\0\1`
//! 2. seven numbers of 4 bytes: tokens, width, heads, layers, inner width, positions, bytes of the vocabulary
//! 3. the vocabulary, one token per line
//! 4. the vectors of tokens as *rows*, and those of positions as floats of 4 bytes
//! 5. a norm, and for each layer: the linear functions query, key, value and attended, a norm, the linear functions inner
//!    and output, a norm
//!
//! *Rows* are one byte per number, then a float for each row by which its bytes are multiplied. A *linear function* is one
//! row per output, then one float per output. A *norm* is two floats per number: all factors, then all numbers to add.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use crate::{
    Model,
    matrix::Linear,
    network::{Layer, Network, Norm, Rows},
    tokenizer::Tokenizer,
};

const MAGIC: &[u8] = b"sentence-model\0\x01";

/// A larger file is not a model file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Why a model file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot read the model file")]
    Read(#[from] io::Error),
    #[error("not a model file of this version: {0}")]
    Format(&'static str),
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::Format("it is too large"));
    }
    Ok(bytes)
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Model, Error> {
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or(Error::Format("its beginning is different"))?;
    let mut reader = Reader { rest };
    let mut number = |least: usize, most: usize| {
        let number = reader.number()?;
        let valid = (least..=most).contains(&number);
        valid
            .then_some(number)
            .ok_or(Error::Format("a size is out of bounds"))
    };
    let tokens = number(4, 1 << 20)?;
    let width = number(1, 4096)?;
    let heads = number(1, 64)?;
    let layers = number(1, 64)?;
    let inner = number(1, 1 << 14)?;
    let positions = number(2, 1024)?;
    let vocabulary = number(1, 1 << 24)?;
    if !width.is_multiple_of(heads) {
        return Err(Error::Format("the heads do not divide the width"));
    }
    let vocabulary = str::from_utf8(reader.take(vocabulary)?)
        .map_err(|_| Error::Format("the vocabulary is not UTF-8"))?;
    let tokenizer =
        Tokenizer::new(vocabulary).ok_or(Error::Format("a special token is missing"))?;
    let words = Rows {
        bytes: reader.bytes(tokens * width)?,
        scales: reader.floats(tokens)?,
    };
    let network = Network {
        width,
        heads,
        words,
        positions: reader.floats(positions * width)?,
        norm: reader.norm(width)?,
        layers: (0..layers)
            .map(|_| {
                Ok(Layer {
                    query: reader.linear(width, width)?,
                    key: reader.linear(width, width)?,
                    value: reader.linear(width, width)?,
                    attended: reader.linear(width, width)?,
                    attended_norm: reader.norm(width)?,
                    inner: reader.linear(width, inner)?,
                    output: reader.linear(inner, width)?,
                    output_norm: reader.norm(width)?,
                })
            })
            .collect::<Result<_, Error>>()?,
    };
    if !reader.rest.is_empty() {
        return Err(Error::Format("it is too long"));
    }
    Ok(Model { tokenizer, network })
}

struct Reader<'f> {
    rest: &'f [u8],
}

impl<'f> Reader<'f> {
    fn take(&mut self, count: usize) -> Result<&'f [u8], Error> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(Error::Format("it is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<usize, Error> {
        let bytes = self.take(4)?.as_chunks().0;
        Ok(bytes.first().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize)
    }

    fn bytes(&mut self, count: usize) -> Result<Vec<i8>, Error> {
        Ok(self
            .take(count)?
            .iter()
            .map(|byte| byte.cast_signed())
            .collect())
    }

    fn floats(&mut self, count: usize) -> Result<Vec<f32>, Error> {
        let (floats, _) = self.take(count * 4)?.as_chunks();
        let floats: Vec<f32> = floats
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        if floats.iter().all(|float| float.is_finite()) {
            Ok(floats)
        } else {
            Err(Error::Format("a number is not finite"))
        }
    }

    fn norm(&mut self, width: usize) -> Result<Norm, Error> {
        Ok(Norm {
            factor: self.floats(width)?,
            bias: self.floats(width)?,
        })
    }

    fn linear(&mut self, input: usize, output: usize) -> Result<Linear, Error> {
        let weights = self.bytes(input * output)?;
        Ok(Linear::new(
            &weights,
            self.floats(output)?,
            self.floats(output)?,
        ))
    }
}
