//! The client role: a conversation with one server.
