//! A model that answers requests.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use iree_llm::Llm;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use xla_session::sample::SamplerOptions;

use crate::Problem;
use crate::metrics::Numbers;
use crate::requests::{Asked, Events, Heard, Waiting};
use crate::server::aside;

/// How much a model takes on, and how it answers where a request does not say it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelOptions {
    /// How answers are sampled, by default [as the model's makers recommend](Llm::recommended); biases and seed are not
    /// used.
    pub sampling: Option<SamplerOptions>,
    /// Most requests that run or wait; what comes beyond them is sent away (429).
    pub most_requests: usize,
}

impl Default for ModelOptions {
    /// 128 requests.
    fn default() -> Self {
        Self { sampling: None, most_requests: 128 }
    }
}

/// A model that requests call by [its name](Llm::name). One without a chat template answers no chats.
pub struct Model {
    pub(crate) llm: Llm,
    pub(crate) sampling: SamplerOptions,
    pub(crate) most_requests: usize,
    /// When it was started, in seconds since 1970.
    pub(crate) created: u64,
    places: Arc<Semaphore>,
    /// Requests for which there was none.
    sent_away: AtomicU64,
    /// Shared with every request that takes places in turns.
    turns: Arc<()>,
    /// Whether its requests have been ended, which are not all that the model has.
    over: Arc<AtomicBool>,
    /// But for what the worker and the places know.
    counted: Arc<Mutex<Numbers>>,
}

impl Model {
    /// `llm`, which others may ask beside the requests that come here.
    pub fn new(llm: Llm, options: ModelOptions) -> Self {
        let ModelOptions { sampling, most_requests } = options;
        Self {
            sampling: sampling.unwrap_or_else(|| llm.recommended()),
            most_requests,
            created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            places: Arc::new(Semaphore::new(most_requests)),
            sent_away: AtomicU64::new(0),
            turns: Arc::default(),
            over: Arc::default(),
            counted: Arc::new(Mutex::new(Numbers::new(llm.worker().statistics()))),
            llm,
        }
    }

    /// What requests call it.
    pub fn name(&self) -> &str {
        self.llm.name()
    }

    /// What answers are sampled with where a request does not say it, by the names of fields.
    pub(crate) fn sampling(&self) -> Value {
        let SamplerOptions { temperature, top_k, top_p, min_p, repeat_penalty, .. } = self.sampling;
        // Single precision, as one would write it.
        let number = |it: f32| it.to_string().parse::<f64>().unwrap_or(it.into());
        json!({
            "temperature": number(temperature), "top_k": top_k, "top_p": number(top_p),
            "min_p": number(min_p), "repeat_penalty": number(repeat_penalty),
        })
    }

    /// Whether its worker is.
    pub(crate) fn is_alive(&self) -> bool {
        self.llm.worker().is_alive()
    }

    /// Whether no request runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.places.available_permits() == self.most_requests && Arc::strong_count(&self.turns) == 1
    }

    /// Held by a request that takes places in turns, which has none between two of them.
    pub(crate) fn takes_turns(&self) -> Arc<()> {
        self.turns.clone()
    }

    pub(crate) fn numbers(&self) -> Numbers {
        let counted = *self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let sent_away = self.sent_away.load(Ordering::Relaxed);
        Numbers { batcher: self.llm.worker().statistics(), sent_away, ..counted }
    }

    /// Places for `count` requests.
    ///
    /// # Errors
    ///
    /// There are not so many, now or ever.
    pub(crate) fn places(&self, count: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let most = self.most_requests;
        if count > most {
            let message = format!(
                "{count} answers at once: this server takes {most} at most; ask for them one after \
                 the other"
            );
            return Err(Problem::request(message));
        }
        let places = self.places.clone().try_acquire_many_owned(count as u32);
        places.map_err(|_| {
            self.sent_away.fetch_add(1, Ordering::Relaxed);
            Problem::queue_full(most)
        })
    }

    /// A place when there is one, and of the places that are free then as many as make `most`. Nobody is refused one
    /// for those that are waited for.
    ///
    /// # Errors
    ///
    /// The server stops.
    pub(crate) async fn wait_for_places(
        &self,
        most: usize,
    ) -> Result<OwnedSemaphorePermit, Problem> {
        let place = self.places.clone().acquire_owned().await;
        let mut places = place.map_err(|_| Problem::stopping())?;
        while places.num_permits() < most
            && let Ok(more) = self.places.clone().try_acquire_owned()
        {
            places.merge(more);
        }
        Ok(places)
    }

    /// Most tokens of an answer to `prompt`: before there are requests, each of which has its own copy.
    ///
    /// # Errors
    ///
    /// There is no room for one.
    pub(crate) fn room(&self, prompt: &[u32]) -> Result<usize, Problem> {
        self.llm.room(prompt).map_err(|error| Problem::engine(&error))
    }

    /// Lets `requests`, which came at `arrived`, wait for their turn.
    ///
    /// # Errors
    ///
    /// What is wrong with one of them, and then none runs; or their time was up before that was known.
    pub(crate) async fn submit(
        &self,
        requests: Vec<Asked>,
        places: OwnedSemaphorePermit,
        arrived: Instant,
    ) -> Result<Events, Problem> {
        let (tokenizer, counted) = (self.llm.tokenizer().clone(), self.counted.clone());
        let (over, goes_on) =
            (self.over.clone(), requests.iter().any(|it| !it.request.answer.is_empty()));
        let hear = move || Heard::new(requests, places, arrived, &tokenizer, counted, over);
        // An answer that is there already may be long.
        let (requests, heard, waiting) = if goes_on { aside(hear).await? } else { hear() };
        self.llm.worker().submit_all(requests, Box::new(heard));
        let Waiting { accepted, events } = waiting;
        let accepted = match events.deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, accepted).await,
            None => Ok(accepted.await),
        };
        let gone = |_| Problem::internal(format!("the model {} has stopped", self.name()));
        accepted.map_err(|_| Problem::too_late())?.map_err(gone)??;
        Ok(events)
    }

    /// Ends all requests where they are.
    pub(crate) fn cut_off(&self) {
        // Nor does what waits for a place begin.
        self.places.close();
        self.over.store(true, Ordering::SeqCst);
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("llm", &self.llm).finish_non_exhaustive()
    }
}
