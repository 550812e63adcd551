//! One request on its way: where it goes, how long it may take, its body.

use crate::body::{self, Encoding, Place};
use crate::decoding::{Covered, Whole};
use crate::door::{Params, Shared};
use crate::guests::Guest;
use crate::options::Options;
use crate::routes::Route;
use crate::wire::room::Room;
use axum::body::Body;
use ramekin_base::{Error, Lane, Result, limits};
use std::sync::Arc;
use std::time::Duration;

pub struct Call {
    pub door: Arc<Shared>,
    pub route: &'static Route,
    pub params: Params,
    pub options: Options,
    pub body: Option<Body>,
    pub encoding: Encoding,
    /// The client waits for a word before it sends its body.
    pub expects: bool,
    /// By the host's clock, for the `time` of the answer.
    pub started: Duration,
    /// The connection on which it came.
    pub guest: Option<Arc<Guest>>,
}

impl Call {
    /// The first `{...}` of the path: the collection, in most.
    pub fn name(&self) -> &str {
        self.params.first().map(String::as_str).unwrap_or_default()
    }

    /// Reads the body, once its memory is there.
    pub async fn whole(&mut self) -> Result<Whole> {
        let body = self.body.take().unwrap_or_default();
        let place = Place { admission: &self.door.admission, guest: self.guest.as_deref(), until: self.options.until };
        body::read(body, self.encoding, place, self.expects).await
    }

    /// Reads the body and decodes it: here if it is small, on the reader pool if not.
    pub async fn decode<T: Send + 'static>(
        &mut self,
        decode: impl Fn(&[u8], &mut Room) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Covered<T>> {
        let (source, decoding) = self.whole().await?.split();
        let (is_small, permit) = (source.bytes.len() <= crate::limits::DECODE_HERE_MAX, decoding.permit.clone());
        let work =
            move |door: &Shared| decoding.attempt(&source, 0..source.bytes.len(), door.admission.account(), &decode);
        let (value, booked) = match is_small {
            true => work(&self.door)?,
            false => self.door.run(Lane::Reads, self.options.until, work).await?,
        };
        Ok(Covered::new(value, booked, permit))
    }

    /// Time since the request came.
    pub fn took(&self) -> Duration {
        self.door.now().saturating_sub(self.started)
    }
}

/// Refuses a path whose collection no name can be, whatever is asked of it. Which signs a name may hold is asked where one is made.
pub fn check_path(route: &Route, params: &Params) -> Result<()> {
    match params.first() {
        Some(name) if route.path.contains("{collection_name}") && name.len() > limits::NAME_MAX => {
            checked_collection_name(name)
        }
        _ => Ok(()),
    }
}

/// The name in the path of a collection to be.
pub fn checked_collection_name(name: &str) -> Result<()> {
    let in_path = |error: Error| {
        Error::new(error.kind(), format!("Validation error in path parameters: [collection_name: {error}]"))
    };
    ramekin_vectors::check_name(name).map_err(in_path)
}
