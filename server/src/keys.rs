//! Who may call.

use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::{Error, Problem};

/// Keys of which a request has to bring one (beside another, if need be), as `Authorization: Bearer KEY` or `x-api-key: KEY`.
///
/// Only their digests are kept. All are compared, in a time that says nothing of how near a guess came,
/// nor of how long keys are. A clone is another handle of the same keys.
#[derive(Clone, Default)]
pub struct Keys {
    digests: Arc<RwLock<Vec<Digest>>>,
}

/// Most keys that a request may bring.
const MOST_GIVEN: usize = 2;

type Digest = [u8; 32];

/// Which of the keys a request has brought. It is shown by the first eight digits of its SHA-256, which
/// tell keys apart and give none away.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeyId(Digest);

impl std::fmt::Display for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Keys {
    /// The keys in `text`, one on each line; empty lines and those that begin with `#` are none.
    ///
    /// # Errors
    ///
    /// [`Error::Key`]: one has other characters than ASCII's, with which no request can bring it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        // Editors of some systems begin a file with a mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut digests = Vec::new();
        for (at, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !line.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
                return Err(Error::Key { line: at });
            }
            digests.push(Sha256::digest(line).into());
        }
        Ok(Self { digests: Arc::new(RwLock::new(digests)) })
    }

    /// From now on those of `other` count, also where a server has these.
    pub fn replace(&self, other: &Self) {
        let new = other.digests().clone();
        *self.digests.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn digests(&self) -> std::sync::RwLockReadGuard<'_, Vec<Digest>> {
        self.digests.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are. With none, nobody is asked for one.
    pub fn len(&self) -> usize {
        self.digests().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.digests().is_empty()
    }

    /// The one of them that `headers` bring; none where there are none.
    ///
    /// # Errors
    ///
    /// They bring no key, another one, or more than two.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<Option<KeyId>, Problem> {
        if self.is_empty() {
            return Ok(None);
        }
        let bearers = headers.get_all(header::AUTHORIZATION).iter().map(|value| {
            let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key)
        });
        // Anthropic's clients bring it so.
        let plain = headers.get_all("x-api-key").iter().map(|value| value.to_str().ok());
        // These bring both where somebody has set both, and one is for another server.
        let given: Vec<_> = bearers.chain(plain).take(MOST_GIVEN + 1).collect();
        if given.len() > MOST_GIVEN {
            return Err(Problem::unauthorized());
        }
        let digests = self.digests();
        let mut admitted = None;
        for key in given.into_iter().flatten() {
            let digest: Digest = Sha256::digest(key.trim()).into();
            let equal = digests.iter().map(|it| it[..].ct_eq(&digest[..]));
            let is_ours: bool = equal.fold(Choice::from(0), |any, it| any | it).into();
            admitted = admitted.or(is_ours.then_some(KeyId(digest)));
        }
        admitted.map(Some).ok_or_else(Problem::unauthorized)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn one_of_the_keys_and_nothing_near_it() {
        let keys = Keys::parse("# ours\nalpha\n\n  beta \r\n").unwrap();
        assert_eq!(keys.len(), 2);
        for good in ["Bearer alpha", "bearer beta", "Bearer  alpha "] {
            assert!(keys.admit(&headers(&[good])).is_ok(), "{good}");
        }
        for bad in
            ["Bearer alph", "Bearer alphaa", "Bearer ", "Basic alpha", "alpha", "Bearer # ours"]
        {
            assert!(keys.admit(&headers(&[bad])).is_err(), "{bad}");
        }
        assert!(keys.admit(&headers(&[])).is_err());
        let others = headers(&["Bearer gamma", "Bearer alpha", "Bearer alpha"]);
        assert!(keys.admit(&others).is_err(), "three are too many");
        assert!(keys.admit(&headers(&["Bearer gamma", "Bearer delta"])).is_err());
        let mut plain = HeaderMap::new();
        plain.insert("x-api-key", "beta".parse().unwrap());
        assert!(keys.admit(&plain).is_ok());
        for another in ["Bearer beta", "Bearer of-another-server"] {
            plain.insert(header::AUTHORIZATION, another.parse().unwrap());
            let admitted = keys.admit(&plain).unwrap().unwrap();
            let beta = keys.admit(&headers(&["Bearer beta"])).unwrap().unwrap();
            assert_eq!(admitted.to_string(), beta.to_string());
        }
        assert!(Keys::parse("#\n").unwrap().admit(&headers(&[])).is_ok(), "no keys, no question");
        // printf alpha | sha256sum
        let alpha = keys.admit(&headers(&["Bearer alpha"])).unwrap().unwrap();
        assert_eq!(alpha.to_string(), "8ed3f6ad");
        let handle = keys.clone();
        keys.replace(&Keys::parse("gamma").unwrap());
        assert!(handle.admit(&headers(&["Bearer gamma"])).is_ok());
        assert!(handle.admit(&headers(&["Bearer alpha"])).is_err());
    }

    #[test]
    fn a_key_that_no_header_has_is_refused_and_a_mark_is_no_part_of_one() {
        let keys = Keys::parse("\u{feff}alpha").unwrap();
        assert!(keys.admit(&headers(&["Bearer alpha"])).is_ok());
        for key in ["schlüssel", "a\tb", "a\u{7f}"] {
            let error = Keys::parse(&format!("# Schlüssel\nalpha\n{key}\n")).unwrap_err();
            assert_eq!(error, Error::Key { line: 3 }, "{key}");
        }
    }
}
