//! How much of one key is taken on.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::Response;
use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::keys::KeyId;
use crate::{Problem, body, messages, rerank};

/// What makes a model work. The rest is free: it takes little, and says how things are.
const WORK: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    messages::PATHS[0],
    "/v1/responses",
    "/infill",
    rerank::PATHS[0],
    rerank::PATHS[1],
];

/// Whether a request of this `method` and `path` counts.
pub(crate) fn counts(method: &Method, path: &str) -> bool {
    method == Method::POST && WORK.contains(&path)
}

/// What each key may ask for, of requests that make a model work. Without keys nobody is limited.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Limits {
    /// Most requests that wait or run at a time.
    pub parallel: Option<NonZeroU32>,
    /// Requests a minute. They come back one by one, evenly; who has sent none for a minute may send so
    /// many at once.
    pub per_minute: Option<NonZeroU32>,
}

/// Keeps every key to the [`Limits`].
pub(crate) struct Limiter {
    limits: Limits,
    /// Those of keys that are no more are kept: one that comes back has gained nothing by it.
    accounts: Mutex<HashMap<KeyId, Arc<Account>>>,
    refused: [AtomicU64; 2],
}

/// What a key has left.
struct Account {
    places: Option<Arc<Semaphore>>,
    bucket: Option<Bucket>,
}

type Bucket = RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>;

/// How a bucket stands behind a request.
struct Standing {
    quota: Quota,
    remaining: u32,
    /// Until one more request may come, if this one may not.
    wait: Option<Duration>,
}

impl Limiter {
    pub fn new(limits: Limits) -> Self {
        Self { limits, accounts: Mutex::default(), refused: Default::default() }
    }

    /// The answer that `answer` gives, if `key` may have one now, else what `refuse` makes of the reason.
    /// Its place is taken until its body has ended, or nobody is there to read it.
    pub async fn answer(
        &self,
        key: KeyId,
        answer: impl Future<Output = Response>,
        refuse: impl FnOnce(Problem) -> Response,
    ) -> Response {
        let account = self.account(key);
        let Ok(place) = account.place() else {
            self.refused[0].fetch_add(1, Ordering::Relaxed);
            let most = self.limits.parallel.map_or(0, NonZeroU32::get);
            let message = format!(
                "{most} requests of this key run or wait, and no more may: try again when one has ended"
            );
            return refuse(Problem::rate_limited(message, Duration::from_secs(1)));
        };
        let standing = account.spend();
        let mut response = match standing.as_ref().and_then(|it| it.wait) {
            None => body::holding(answer.await, place),
            Some(wait) => {
                self.refused[1].fetch_add(1, Ordering::Relaxed);
                let most = self.limits.per_minute.map_or(0, NonZeroU32::get);
                let message = format!(
                    "this key may send {most} requests a minute: try again in {} s",
                    whole_seconds(wait)
                );
                refuse(Problem::rate_limited(message, wait))
            }
        };
        if let Some(standing) = standing {
            standing.tell(response.headers_mut());
        }
        response
    }

    /// Requests that were refused, by the limit that did it.
    pub fn refused(&self) -> [(&'static str, u64); 2] {
        let [parallel, per_minute] = &self.refused;
        [("parallel", parallel), ("rpm", per_minute)]
            .map(|(limit, count)| (limit, count.load(Ordering::Relaxed)))
    }

    fn account(&self, key: KeyId) -> Arc<Account> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.entry(key).or_insert_with(|| Arc::new(Account::new(&self.limits))).clone()
    }
}

impl Account {
    fn new(limits: &Limits) -> Self {
        let places = limits.parallel.map(|most| Arc::new(Semaphore::new(most.get() as usize)));
        let bucket = limits.per_minute.map(|most| {
            RateLimiter::direct(Quota::per_minute(most))
                .with_middleware::<StateInformationMiddleware>()
        });
        Self { places, bucket }
    }

    /// A place, where they are counted.
    ///
    /// # Errors
    ///
    /// All are taken.
    fn place(&self) -> Result<Option<OwnedSemaphorePermit>, tokio::sync::TryAcquireError> {
        self.places.clone().map(Semaphore::try_acquire_owned).transpose()
    }

    /// Counts one request, where they are counted and there is one left.
    fn spend(&self) -> Option<Standing> {
        let bucket = self.bucket.as_ref()?;
        Some(match bucket.check() {
            Ok(state) => Standing {
                quota: state.quota(),
                remaining: state.remaining_burst_capacity(),
                wait: None,
            },
            Err(refused) => Standing {
                quota: refused.quota(),
                remaining: 0,
                wait: Some(refused.wait_time_from(bucket.clock().now())),
            },
        })
    }
}

impl Standing {
    /// As OpenAI's API says it.
    fn tell(&self, headers: &mut HeaderMap) {
        let limit = self.quota.burst_size().get();
        let reset = self.quota.replenish_interval() * (limit - self.remaining);
        headers.insert("x-ratelimit-limit-requests", HeaderValue::from(limit));
        headers.insert("x-ratelimit-remaining-requests", HeaderValue::from(self.remaining));
        if let Ok(reset) = HeaderValue::from_str(&format!("{}s", whole_seconds(reset))) {
            headers.insert("x-ratelimit-reset-requests", reset);
        }
    }
}

/// Rounded up: who waits so long has waited long enough.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    use super::*;
    use crate::Keys;

    fn key(text: &str) -> KeyId {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", text.parse().unwrap());
        Keys::parse(text).unwrap().admit(&headers).unwrap().unwrap()
    }

    fn limiter(parallel: u32, per_minute: u32) -> Limiter {
        let [parallel, per_minute] = [parallel, per_minute].map(NonZeroU32::new);
        Limiter::new(Limits { parallel, per_minute })
    }

    async fn ask(limiter: &Limiter, who: &str) -> Response {
        let answer = async { Response::new(Body::from("yes")) };
        limiter.answer(key(who), answer, IntoResponse::into_response).await
    }

    #[tokio::test]
    async fn a_place_is_taken_until_the_body_has_ended_or_is_dropped() {
        let limiter = limiter(2, 0);
        let (first, second) = (ask(&limiter, "a").await, ask(&limiter, "a").await);
        assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
        assert!(!first.headers().contains_key("x-ratelimit-limit-requests"));
        let third = ask(&limiter, "a").await;
        assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(third.headers()["retry-after"], "1");
        assert_eq!(ask(&limiter, "b").await.status(), StatusCode::OK);
        assert_eq!(axum::body::to_bytes(first.into_body(), 10).await.unwrap(), "yes");
        assert_eq!(ask(&limiter, "a").await.status(), StatusCode::OK);
        drop(second);
        assert_eq!(ask(&limiter, "a").await.status(), StatusCode::OK);
        assert_eq!(limiter.refused(), [("parallel", 1), ("rpm", 0)]);
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_gives_its_place_back() {
        let limiter = limiter(1, 0);
        let never = limiter.answer(key("a"), std::future::pending(), IntoResponse::into_response);
        assert!(tokio::time::timeout(Duration::from_millis(5), never).await.is_err());
        assert_eq!(ask(&limiter, "a").await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_bucket_is_of_one_key_and_says_how_it_stands() {
        let limiter = limiter(0, 3);
        for (left, reset) in [("2", "20s"), ("1", "40s"), ("0", "60s")] {
            let answer = ask(&limiter, "a").await;
            let said = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
            assert_eq!(answer.status(), StatusCode::OK);
            assert_eq!(said("x-ratelimit-limit-requests"), "3");
            assert_eq!(said("x-ratelimit-remaining-requests"), left);
            assert_eq!(said("x-ratelimit-reset-requests"), reset);
        }
        let refused = ask(&limiter, "a").await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((19..=20).contains(&wait), "{wait}");
        assert_eq!(refused.headers()["x-ratelimit-remaining-requests"], "0");
        assert_eq!(ask(&limiter, "b").await.status(), StatusCode::OK);
        assert_eq!(limiter.refused(), [("parallel", 0), ("rpm", 1)]);
    }

    #[tokio::test]
    async fn who_finds_no_place_has_spent_nothing() {
        let limiter = limiter(1, 2);
        let first = ask(&limiter, "a").await;
        for _ in 0..5 {
            assert_eq!(ask(&limiter, "a").await.status(), StatusCode::TOO_MANY_REQUESTS);
        }
        drop(first);
        assert_eq!(ask(&limiter, "a").await.headers()["x-ratelimit-remaining-requests"], "0");
    }

    #[test]
    fn what_counts_is_there() {
        let free = [messages::PATHS[1], "/tokenize", "/detokenize"];
        let read = [
            "/v1/responses/{id}",
            "/v1/models",
            "/v1/models/{*name}",
            "/health",
            "/ready",
            crate::server::METRICS,
            "/version",
            "/openapi.json",
        ];
        let mut known = [&WORK[..], &free, &read].concat();
        let mut routes = crate::server::routes().map(|(path, _)| path).to_vec();
        known.sort_unstable();
        routes.sort_unstable();
        assert_eq!(known, routes);
        assert!(!counts(&Method::GET, WORK[0]) && !counts(&Method::POST, free[0]));
    }
}
