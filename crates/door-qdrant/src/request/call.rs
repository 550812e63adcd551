//! One request on its way: where it goes, how long it may take, its body.

use crate::admission::encoding::Encoding;
use crate::admission::guests::Guest;
use crate::body::decoding::{FullBody, Reserved};
use crate::body::{self, Place};
use crate::errors::Outcome;
use crate::lanes;
use crate::limits::DECODE_HERE_MAX;
use crate::request::keys::Access;
use crate::request::options::Options;
use crate::request::state::{DoorInner, Params};
use crate::response::BookedResponse;
use axum::body::Body;
use ramekin_base::{Error, Result, limits};
use ramekin_memory::SharedReservation;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// What serves a route.
pub type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Outcome<BookedResponse>> + Send>>;

pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub access: Access,
    pub handler: Handler,
}

pub struct Call {
    pub door: Arc<DoorInner>,
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
    pub async fn whole(&mut self) -> Result<FullBody> {
        let body = self.body.take().unwrap_or_default();
        let place = Place { admission: &self.door.admission, guest: self.guest.as_deref(), until: self.options.until };
        body::read(body, self.encoding, place, self.expects).await
    }

    /// Reads the body and decodes it: here if it is small, on the reader pool if not.
    pub async fn decode<T: Send + 'static>(
        &mut self,
        decode: impl Fn(&[u8], &mut SharedReservation) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Reserved<T>> {
        let (source, decoding) = self.whole().await?.split();
        let (bytes, permit) = (source.bytes.len(), decoding.permit.clone());
        let work = move |door: &DoorInner| decoding.attempt(&source, 0..bytes, door.admission.account(), &decode);
        let (value, booked) = match bytes <= DECODE_HERE_MAX {
            true => work(&self.door)?,
            false => self.door.run(lanes::of_body(bytes), self.options.until, work).await?,
        };
        Ok(Reserved::new(value, booked, permit))
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
