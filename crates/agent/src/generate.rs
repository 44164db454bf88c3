//! Streams that are written as a function which emits.
//!
//! The function runs inside the stream's own `poll`: there is no task, so dropping the stream drops the function
//! where it waits, and whoever does not read holds it up once [`BUFFER`] items are waiting.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{Stream, future::BoxFuture};
use tokio::sync::mpsc;

/// How many items wait for the reader.
const BUFFER: usize = 32;

/// Where the function puts its items.
pub(crate) struct Emitter<T>(mpsc::Sender<T>);

/// The stream.
pub struct Generated<'a, T> {
    run: Option<BoxFuture<'a, ()>>,
    items: mpsc::Receiver<T>,
}

/// Makes a stream of what `run` emits.
pub(crate) fn generate<'a, T, F>(run: impl FnOnce(Emitter<T>) -> F) -> Generated<'a, T>
where
    F: Future<Output = ()> + Send + 'a,
{
    let (sender, items) = mpsc::channel(BUFFER);
    let run = Some(Box::pin(run(Emitter(sender))) as BoxFuture<'a, ()>);
    Generated { run, items }
}

impl<T> Emitter<T> {
    pub(crate) async fn emit(&self, item: T) {
        // The reader lives as long as the function, for it is what polls it.
        let _ = self.0.send(item).await;
    }
}

impl<T> Stream for Generated<'_, T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        loop {
            // What was emitted before the function came to wait goes out first.
            let received = self.items.poll_recv(context);
            if let Poll::Ready(Some(item)) = received {
                return Poll::Ready(Some(item));
            }
            // Without a function the channel is closed and says when it is empty. Until then it may be tokio that wants
            // this task to pause.
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

    /// tokio makes a task pause after so many receives, in the middle of what is waiting too.
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
