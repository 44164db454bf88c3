//! Streams written as an async function that emits items.
//!
//! The function runs inside the stream's `poll`, without a task. Dropping the stream therefore drops the function at
//! its current await point, and a slow reader stalls it once [`MAX_BUFFERED_ITEMS`] items are waiting.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{Stream, future::BoxFuture};
use tokio::sync::mpsc;

/// Capacity of the buffer between the function and the reader.
const MAX_BUFFERED_ITEMS: usize = 32;

/// The function's side of the stream.
pub(crate) struct Emitter<T>(mpsc::Sender<T>);

pub struct Generated<'a, T> {
    run: Option<BoxFuture<'a, ()>>,
    items: mpsc::Receiver<T>,
}

/// Creates a stream of the items that `run` emits.
pub(crate) fn generate<'a, T, F>(run: impl FnOnce(Emitter<T>) -> F) -> Generated<'a, T>
where
    F: Future<Output = ()> + Send + 'a,
{
    let (sender, items) = mpsc::channel(MAX_BUFFERED_ITEMS);
    let run = Some(Box::pin(run(Emitter(sender))) as BoxFuture<'a, ()>);
    Generated { run, items }
}

impl<T> Emitter<T> {
    pub(crate) async fn emit(&self, item: T) {
        // Sending cannot fail, because the reader is the one that polls this function.
        let _ = self.0.send(item).await;
    }
}

impl<T> Stream for Generated<'_, T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        loop {
            // Return buffered items before polling the function again.
            let received = self.items.poll_recv(context);
            if let Poll::Ready(Some(item)) = received {
                return Poll::Ready(Some(item));
            }
            // The function has ended, so the channel is closed and ends once it is empty. `Pending` is possible only
            // because of tokio's cooperative scheduling.
            let Some(run) = &mut self.run else {
                return received;
            };
            match run.as_mut().poll(context) {
                Poll::Ready(()) => self.run = None,
                Poll::Pending => {
                    return match self.items.poll_recv(context) {
                        Poll::Ready(Some(item)) => Poll::Ready(Some(item)),
                        _ => Poll::Pending,
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn everything_comes_out_in_order_and_then_the_end() {
        let stream = generate(|emitter| async move {
            for number in 0..100 {
                if number % 7 == 0 {
                    tokio::task::yield_now().await;
                }
                emitter.emit(number).await;
            }
        });
        let numbers: Vec<i32> = stream.collect().await;
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    }

    /// tokio forces a task to yield after a number of receives, even while items are waiting.
    #[tokio::test]
    async fn nothing_is_lost_however_much_there_is() {
        for count in 0..400 {
            let stream = generate(|emitter| async move {
                for number in 0..count {
                    emitter.emit(number).await;
                }
            });
            let numbers: Vec<i32> = stream.collect().await;
            assert_eq!(numbers.len(), usize::try_from(count).expect("a count"));
        }
    }

    #[tokio::test]
    async fn dropping_the_stream_drops_the_function() {
        struct Flag(std::sync::Arc<std::sync::atomic::AtomicBool>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let dropped = std::sync::Arc::default();
        let flag = Flag(std::sync::Arc::clone(&dropped));
        let mut stream = generate(|emitter| async move {
            let _flag = flag;
            emitter.emit(1).await;
            std::future::pending().await
        });
        assert_eq!(stream.next().await, Some(1));
        assert!(!dropped.load(std::sync::atomic::Ordering::Relaxed));
        drop(stream);
        assert!(dropped.load(std::sync::atomic::Ordering::Relaxed));
    }
}
