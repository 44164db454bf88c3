//! Sends messages to one endpoint and returns the responses unchanged, for proxies between other parties.
//!
//! Deliberately absent: own ids, progress tokens and sessions, the handshake, eras, retries. Dropping a request or its
//! [`Reply`] early closes the connection, which the endpoint may treat as a cancellation.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, header::ACCEPT};
use http_body_util::{BodyExt, Full};

use super::{
    Pool,
    body::{Media, media},
    endpoint::Endpoint,
    pool::Body,
};
use crate::{
    client::ConnectError,
    gather::{Unread, Whole},
    headers::HeaderList,
    sse::{Event, Parser},
};
use http_client::{Options, Pin, Proxies, cause};

/// An endpoint of this installation, and its connection pool. Proxies are not used.
pub struct Passage {
    pool: Pool,
    endpoint: Endpoint,
    max_message: usize,
}

/// Why a response is missing or incomplete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PassageError {
    /// Nothing was sent.
    #[error("cannot connect: {0}")]
    NotSent(String),
    /// The request may or may not have arrived.
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

/// The head of a response. Read the body with [`Reply::event`] or [`Reply::whole`].
pub struct Reply {
    pub status: StatusCode,
    headers: HeaderMap,
    body: Body,
    parser: Parser,
    max_message: usize,
}

impl Passage {
    /// `headers` are sent with every request. `max_message` is in bytes. `pin`: the certificate of the endpoint, if it is
    /// known.
    ///
    /// # Errors
    /// The URL or a header is invalid.
    pub fn new(
        url: &str,
        headers: &[(String, String)],
        max_message: usize,
        pin: Option<Pin>,
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            pool: Pool::new(Options {
                proxies: Proxies::none(),
                pin,
                ..Options::guarded(false)
            }),
            endpoint: Endpoint::new(url, headers)?,
            max_message,
        })
    }

    /// Sends a request and waits for the response head, without a timeout.
    ///
    /// # Errors
    /// [`PassageError::NotSent`] or [`PassageError::Broken`].
    pub async fn send(
        &self,
        method: Method,
        accept: &'static str,
        headers: HeaderList,
        body: Bytes,
    ) -> Result<Reply, PassageError> {
        let mut all = self.endpoint.headers.clone();
        all.insert(ACCEPT, http::HeaderValue::from_static(accept));
        for (name, value) in headers {
            all.append(name, value);
        }
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.headers_mut() = all;
        let answer = self.pool.request(&self.endpoint.origin, request).await;
        let response = answer.map_err(|error| {
            let why = cause(&error);
            if error.is_connect() {
                PassageError::NotSent(why)
            } else {
                PassageError::Broken(why)
            }
        })?;
        let (parts, body) = response.into_parts();
        Ok(Reply {
            status: parts.status,
            headers: parts.headers,
            body,
            parser: Parser::new(self.max_message),
            max_message: self.max_message,
        })
    }
}

impl Reply {
    #[must_use]
    pub fn header(&self, name: &HeaderName) -> Option<&http::HeaderValue> {
        self.headers.get(name)
    }

    /// Returns true if the body is an event stream.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.status.is_success() && media(&self.headers) == Media::Events
    }

    /// The next event, or `None` at the end of the stream.
    ///
    /// # Errors
    /// [`PassageError::Broken`] or [`PassageError::TooLong`].
    ///
    /// # Cancel safety
    /// Cancel safe: partial data stays in `self`.
    pub async fn event(&mut self) -> Result<Option<Event>, PassageError> {
        loop {
            let event = self.parser.next_event();
            if let Some(event) = event.map_err(|long| PassageError::TooLong(long.0))? {
                return Ok(Some(event));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.parser.push(data.clone());
                    }
                }
                None => return Ok(None),
                Some(Err(error)) => return Err(PassageError::Broken(cause(&error))),
            }
        }
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// [`PassageError::Broken`] or [`PassageError::TooLong`].
    pub async fn whole(self) -> Result<Bytes, PassageError> {
        let max = self.max_message;
        Whole::new(self.body, max)
            .read()
            .await
            .map_err(|error| match error {
                Unread::TooLong => PassageError::TooLong(max),
                Unread::Broken(error) => PassageError::Broken(cause(&error)),
            })
    }
}
