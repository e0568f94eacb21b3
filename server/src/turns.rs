//! Prompts of one request that are only read: together as many as there are places for, the rest in turns.

use std::sync::Arc;
use std::time::Instant;

use text::StopStrings;
use tokio::sync::OwnedSemaphorePermit;
use xla_session::batching::{Ended, Request};

use crate::requests::{Asked, Event};
use crate::{Model, Problem};

/// Most that run at once.
const AT_ONCE: usize = 64;

/// A turn that has been taken, and may be followed by others.
pub(crate) struct Turns {
    at_once: usize,
    places: OwnedSemaphorePermit,
    /// While there are some.
    _turns: Arc<()>,
}

impl Turns {
    /// Those of `count` prompts of `model`.
    ///
    /// # Errors
    ///
    /// There is no place.
    pub fn take(model: &Model, count: usize) -> Result<Self, Problem> {
        let at_once = AT_ONCE.min(model.most_requests);
        let places = model.places(count.min(at_once))?;
        Ok(Self { at_once, places, _turns: model.takes_turns() })
    }

    /// What becomes of each of `requests`.
    ///
    /// # Errors
    ///
    /// A prompt is longer than the context, or one has failed.
    pub async fn run(self, model: &Model, requests: Vec<Request>) -> Result<Vec<Ended>, Problem> {
        // What is found in its turn only would make all before it for nothing.
        for request in &requests {
            model.room(&request.prompt)?;
        }
        let (mut done, mut places) = (Vec::with_capacity(requests.len()), Some(self.places));
        let mut rest = requests.into_iter();
        while rest.len() > 0 {
            let places = match places.take() {
                Some(places) => places,
                // It has been let in: what has run already is not to be for nothing.
                None => model.wait_for_places(self.at_once.min(rest.len())).await?,
            };
            let turn = rest.by_ref().take(places.num_permits()).collect();
            done.extend(run(model, turn, places).await?);
        }
        Ok(done)
    }
}

/// What becomes of `requests`, which run together in as many `places`.
async fn run(
    model: &Model,
    requests: Vec<Request>,
    places: OwnedSemaphorePermit,
) -> Result<Vec<Ended>, Problem> {
    let asked = requests.into_iter().map(|request| {
        let (stops, failure) = (StopStrings::default(), Arc::default());
        Asked { request, stops, shown: Vec::new(), lines: None, failure, timeout: None }
    });
    let asked: Vec<_> = asked.collect();
    let mut done: Vec<_> = asked.iter().map(|_| None).collect();
    let mut events = model.submit(asked, places, Instant::now()).await?;
    while done.iter().any(Option::is_none) {
        match events.next().await {
            Some((index, Event::Ended { ended, .. })) => done[index] = Some(ended),
            Some((_, Event::Failed(problem))) => return Err(problem),
            Some((_, Event::Begun { .. } | Event::Token { .. })) => {}
            None => return Err(Problem::internal("the model stopped before all had been read")),
        }
    }
    Ok(done.into_iter().flatten().collect())
}
