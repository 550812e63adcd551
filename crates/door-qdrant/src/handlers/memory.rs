//! The ledger: `GET /memory` shows every byte with its owner, `PUT /memory` moves the budget.

use crate::errors::{HttpError, Outcome};
use crate::limits::answers_min_reservation;
use crate::request::call::Call;
use crate::response::{BookedResponse, ResponseWriter};
use crate::wire::json::{DecodeError, Decoded, Reader};
use axum::http::StatusCode;
use ramekin_base::{Error, Lane, Result, Size};
use ramekin_memory::{Account, Budget, Ledger, cgroup_limit};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

/// `GET /memory`
pub async fn get(call: Call) -> Outcome<BookedResponse> {
    let started = call.started;
    let shown = call.door.run(Lane::Short, call.options.until, move |door| {
        door.answer(started, |_, text| show(&door.host.budget, &door.answers, text))
    });
    Ok(shown.await?)
}

/// Writes the ledger. A store of many collections has many accounts: its lines are booked, like the text.
fn show(budget: &Budget, account: &Account, text: &mut ResponseWriter) -> Result<()> {
    let _lines = account.try_reserve(Ledger::bytes_at_most(budget))?;
    let ledger = Ledger::take(budget);
    text.push(&format!(
        r#"{{"budget_bytes":{},"charged_bytes":{},"peak_bytes":{},"unaccounted_bytes":{},"pressure":"{}","accounts":"#,
        ledger.budget_bytes, ledger.charged_bytes, ledger.peak_bytes, ledger.unaccounted_bytes, ledger.pressure
    ))?;
    text.list(&ledger.accounts, |text, line| text.value(line, 6 * line.name.len() + line.formula.len() + 256))?;
    text.push("}")
}

/// Changes of the budget at a time: each takes one of the few threads on which the runtime may block.
pub const BUDGET_MOVES: usize = 2;

/// A wish for another budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetRequest {
    pub budget: u64,
    pub persist: bool,
}

/// Reads a budget: `"64MiB"`, or bytes.
pub fn budget(reader: &mut Reader<'_>) -> Decoded<u64> {
    if reader.peek()? != b'"' {
        return reader.value();
    }
    Ok(Size::parse(&reader.string()?).map_err(|error| DecodeError::invalid(error.message()))?.0)
}

/// Decodes the body of `PUT /memory`.
pub fn budget_request(body: &[u8]) -> Result<BudgetRequest> {
    let mut reader = Reader::new(body)?;
    let (mut budget, mut persist) = (None, false);
    reader.object(|reader, key| {
        match key {
            "budget" => budget = Some(self::budget(reader)?),
            "persist" => persist = reader.value::<Option<bool>>()?.unwrap_or(false),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.finish()?;
    let budget = budget.ok_or_else(|| DecodeError::missing("budget"))?;
    Ok(BudgetRequest { budget, persist })
}

/// `PUT /memory`
pub async fn put(mut call: Call) -> Outcome<BookedResponse> {
    let BudgetRequest { budget, persist } = *call.decode(|body, _| budget_request(body)).await?;
    let door = call.door.clone();
    let invalid = |reason: String| {
        HttpError::from(Error::from(
            DecodeError::invalid(format!("value {} invalid, {reason}", Size(budget))).in_field("budget"),
        ))
    };
    let least = door.host.least_budget;
    if budget < least {
        return Err(invalid(format!("the least possible is {} ({least} bytes)", Size(least))));
    }
    if let Some(most) = cgroup_limit().filter(|most| budget > *most) {
        return Err(invalid(format!("the memory cgroup of the server has {} ({most} bytes)", Size(most))));
    }
    let (set_budget, until) = (door.host.set_budget.clone(), call.options.until);
    let turn = timeout_at(until, door.budget_moves.clone().acquire_owned()).await;
    let turn = turn.map_err(|_| Error::busy(format!("{BUDGET_MOVES} other changes of the budget are under way")))?;
    door.admission.before_budget(budget);
    if budget < door.host.budget.limit() {
        // A minimum reservation that shrinks cannot fail.
        let _ = door.answers.set_min_reservation(answers_min_reservation(budget));
    }
    let moving = door.clone();
    let moved = tokio::task::spawn_blocking(move || {
        // It may go on when its client is gone.
        let _turn = turn;
        let at_most = until.saturating_duration_since(Instant::now());
        set_budget(budget, persist, at_most).map(|reached| (reached, Ledger::totals(&moving.host.budget)))
    });
    let moved = moved.await;
    door.admission.after_budget();
    // A minimum reservation that grows may have to wait for the next change.
    let _ = door.answers.set_min_reservation(answers_min_reservation(door.host.budget.limit()));
    door.guests.after_budget();
    let (reached, ledger) = moved.map_err(|_| Error::bug("the change of the budget ended without an answer"))??;
    let result = json!({
        "budget_bytes": budget,
        "charged_bytes": ledger.charged_bytes,
        "reached": reached,
        "persist": persist,
    });
    let answer = BookedResponse::result(&result, call.took())?;
    Ok(if reached { answer } else { answer.with_status(StatusCode::ACCEPTED) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Kind;

    #[test]
    fn wishes() {
        assert_eq!(
            budget_request(br#"{"budget":"64MiB"}"#).unwrap(),
            BudgetRequest { budget: 64 << 20, persist: false }
        );
        assert_eq!(
            budget_request(br#"{"budget":67108864,"persist":true}"#).unwrap(),
            BudgetRequest { budget: 64 << 20, persist: true }
        );
        assert_eq!(budget_request(br#"{"budget":"64 apples"}"#).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(budget_request(br#"{"budget":-1}"#).unwrap_err().kind(), Kind::Malformed);
        assert_eq!(budget_request(b"{}").unwrap_err().kind(), Kind::Malformed);
    }
}
