//! What the two image examples share: networks, pictures, and objects to learn.

pub(crate) mod boxes;
pub(crate) mod canvas;
pub(crate) mod cutout;
pub(crate) mod network;
pub(crate) mod objects;
pub(crate) mod scenes;
