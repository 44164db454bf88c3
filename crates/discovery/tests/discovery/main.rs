//! The search through the public interface: its quality on real tools, and odd input.

mod data;
mod inputs;
mod retrieval;
