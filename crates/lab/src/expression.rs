//! Assertions over results: `run.moved_pages.demoted > 0 and placement.parts.0.node0 >= 0.9 * 512`.
//!
//! In: a text, and values by name. Out: a number, text or truth, and which values it was made of. Must not: take a missing
//! value for zero or false: what is not there fails the assertion and says so.
//!
//! Grammar, weakest first: `or` · `and` · `== != < <= > >=` · `+ -` · `* /` · numbers, "texts", true, false, null, paths,
//! parentheses, and `length(x)`, `sum(x)`, `exists(path)`. A path is names and numbers with dots between; `trackers[name=accessed-bits]` is
//! the first element of a list with that value. `sum(list)` adds up numbers, `sum(list, key)` those of each element.
//!
//! Why not a crate: `evalexpr` 13, the usual one, is under the AGPL, which crates of ours may not be; and here a missing value must be named, and
//! what a condition that does not hold was made of.

use std::collections::BTreeMap;

use serde_json::Value;

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// The text breaks the grammar.
    #[error("{0}")]
    Syntax(String),
    /// Unknown value.
    #[error("there is no value `{name}`: there are {present}")]
    NoValue {
        /// What was asked for.
        name: String,
        /// The values there are.
        present: String,
    },
    /// A value has no such part.
    #[error("`{value}` has no `{part}`: it {is}")]
    NoPart {
        /// The path up to the value.
        value: String,
        /// The part that was asked for.
        part: String,
        /// What the value has, or is.
        is: String,
    },
    /// Unknown function.
    #[error("there is no function {0}: length, sum, exists")]
    NoFunction(String),
    /// A value is of another kind than its use needs.
    #[error("{value} is {wanted}")]
    Kind {
        /// The value, or its path.
        value: String,
        /// What it is not, in words.
        wanted: &'static str,
    },
    /// A list or text has no length.
    #[error("{path} is {value}, which has no length")]
    NoLength {
        /// Where the value lies.
        path: String,
        /// The value.
        value: String,
    },
}

/// What an expression came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// The result.
    pub value: Value,
    /// Every path that was looked up and what was there, in the order of use.
    pub used: Vec<(String, Value)>,
}

/// Evaluates a text.
///
/// # Errors
/// With what is wrong: the text, a missing value, or values that cannot be compared.
pub fn evaluate(text: &str, values: &BTreeMap<String, Value>) -> Result<Evaluated, ExpressionError> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, values, used: Vec::new() };
    let value = parser.any()?;
    match parser.tokens.get(parser.at) {
        None => Ok(Evaluated { value, used: parser.used }),
        Some(token) => Err(syntax(format!("{token:?} is not expected there in `{text}`"))),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    Text(String),
    /// A path or a word.
    Word(String),
    Sign(&'static str),
}

const SIGNS: [&str; 13] = ["==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "(", ")", ","];

fn tokens(text: &str) -> Result<Vec<Token>, ExpressionError> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push(Token::Sign(sign));
            sign.len()
        } else if first == '"' {
            let end = rest[1..].find('"').ok_or_else(|| syntax(format!("a text without an end in `{text}`")))?;
            tokens.push(Token::Text(rest[1..=end].to_owned()));
            end + 2
        } else if first.is_ascii_digit() {
            let length = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            tokens.push(Token::Number(rest[..length].parse().map_err(|_| not(&rest[..length], "no number"))?));
            length
        } else if first.is_ascii_alphabetic() || first == '_' {
            let length = word_length(rest);
            tokens.push(Token::Word(rest[..length].to_owned()));
            length
        } else {
            return Err(syntax(format!("{first:?} is not understood in `{text}`")));
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// A word goes on over dots and over brackets with anything in them.
fn word_length(text: &str) -> usize {
    let mut in_bracket = false;
    for (at, c) in text.char_indices() {
        match c {
            '[' => in_bracket = true,
            ']' => in_bracket = false,
            _ if in_bracket || c.is_ascii_alphanumeric() || c == '_' || c == '.' => {}
            _ => return at,
        }
    }
    text.len()
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    values: &'a BTreeMap<String, Value>,
    used: Vec<(String, Value)>,
}

impl Parser<'_> {
    fn takes(&mut self, token: &Token) -> bool {
        let is_there = self.tokens.get(self.at) == Some(token);
        self.at += usize::from(is_there);
        is_there
    }

    fn sign(&mut self, signs: &[&'static str]) -> Option<&'static str> {
        signs.iter().find(|sign| self.takes(&Token::Sign(sign))).copied()
    }

    fn any(&mut self) -> Result<Value, ExpressionError> {
        let mut left = self.all()?;
        while self.takes(&Token::Word("or".to_owned())) {
            // Evaluate the right side in any case, so that a wrong path is found whatever the left side is.
            let right = self.all()?;
            left = Value::Bool(truth(&left)? | truth(&right)?);
        }
        Ok(left)
    }

    fn all(&mut self) -> Result<Value, ExpressionError> {
        let mut left = self.comparison()?;
        while self.takes(&Token::Word("and".to_owned())) {
            let right = self.comparison()?;
            left = Value::Bool(truth(&left)? & truth(&right)?);
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Value, ExpressionError> {
        let left = self.sum()?;
        let Some(sign) = self.sign(&["==", "!=", "<=", ">=", "<", ">"]) else { return Ok(left) };
        let right = self.sum()?;
        let equal = match (left.as_f64(), right.as_f64()) {
            (Some(left), Some(right)) => left == right,
            _ => left == right,
        };
        Ok(Value::Bool(match sign {
            "==" => equal,
            "!=" => !equal,
            _ => {
                let (left, right) = (number(&left)?, number(&right)?);
                match sign {
                    "<" => left < right,
                    "<=" => left <= right,
                    ">" => left > right,
                    _ => left >= right,
                }
            }
        }))
    }

    fn sum(&mut self) -> Result<Value, ExpressionError> {
        let mut left = self.product()?;
        while let Some(sign) = self.sign(&["+", "-"]) {
            let right = number(&self.product()?)?;
            let sum = number(&left)? + if sign == "+" { right } else { -right };
            left = from_number(sum)?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Value, ExpressionError> {
        let mut left = self.atom()?;
        while let Some(sign) = self.sign(&["*", "/"]) {
            let right = number(&self.atom()?)?;
            let product = if sign == "*" { number(&left)? * right } else { number(&left)? / right };
            left = from_number(product)?;
        }
        Ok(left)
    }

    fn atom(&mut self) -> Result<Value, ExpressionError> {
        if self.sign(&["("]).is_some() {
            let value = self.any()?;
            return if self.sign(&[")"]).is_some() { Ok(value) } else { Err(syntax("a ) is missing")) };
        }
        if self.sign(&["-"]).is_some() {
            return from_number(-number(&self.atom()?)?);
        }
        let token = self.tokens.get(self.at).ok_or_else(|| syntax("something is missing at the end"))?.clone();
        self.at += 1;
        match token {
            Token::Number(number) => from_number(number),
            Token::Text(text) => Ok(Value::String(text)),
            Token::Sign(sign) => Err(syntax(format!("a value is expected instead of {sign}"))),
            Token::Word(word) => match word.as_str() {
                "true" => Ok(Value::Bool(true)),
                "false" => Ok(Value::Bool(false)),
                "null" => Ok(Value::Null),
                _ if self.tokens.get(self.at) == Some(&Token::Sign("(")) => self.call(&word),
                _ => {
                    let value = look_up(&word, self.values)?.clone();
                    self.used.push((word, value.clone()));
                    Ok(value)
                }
            },
        }
    }

    fn call(&mut self, function: &str) -> Result<Value, ExpressionError> {
        self.at += 1;
        let path = match self.tokens.get(self.at) {
            Some(Token::Word(path)) => path.clone(),
            _ => return Err(syntax(format!("{function}() takes a path"))),
        };
        self.at += 1;
        let key = match self.sign(&[","]).map(|_| self.tokens.get(self.at)) {
            None => None,
            Some(Some(Token::Word(key))) => {
                self.at += 1;
                Some(key.clone())
            }
            Some(_) => return Err(syntax(format!("{function}(path, key): the key is missing"))),
        };
        if self.sign(&[")"]).is_none() {
            return Err(syntax(format!("a ) is missing after {function}({path}")));
        }
        let found = look_up(&path, self.values);
        let result = match function {
            "exists" => Value::Bool(found.is_ok()),
            "length" => match found? {
                Value::Array(list) => Value::from(list.len()),
                Value::Object(entries) => Value::from(entries.len()),
                Value::String(text) => Value::from(text.len()),
                other => return Err(ExpressionError::NoLength { path, value: other.to_string() }),
            },
            "sum" => {
                let Value::Array(list) = found? else { return Err(not(path, "no list")) };
                let mut sum = 0.0;
                for element in list {
                    sum += number(key.as_ref().map_or(Some(element), |key| element.get(key)).unwrap_or(&Value::Null))?;
                }
                from_number(sum)?
            }
            _ => return Err(ExpressionError::NoFunction(function.to_owned())),
        };
        let shown = key.map_or_else(|| format!("{function}({path})"), |key| format!("{function}({path}, {key})"));
        self.used.push((shown, result.clone()));
        Ok(result)
    }
}

fn syntax(what: impl Into<String>) -> ExpressionError {
    ExpressionError::Syntax(what.into())
}

fn not(value: impl ToString, wanted: &'static str) -> ExpressionError {
    ExpressionError::Kind { value: value.to_string(), wanted }
}

/// Finds what a path leads to.
fn look_up<'a>(path: &str, values: &'a BTreeMap<String, Value>) -> Result<&'a Value, ExpressionError> {
    let mut parts = parts(path).into_iter();
    let name = parts.next().unwrap_or_default();
    let mut value = values.get(&name).ok_or_else(|| {
        let present: Vec<&str> = values.keys().map(String::as_str).collect();
        ExpressionError::NoValue { name: name.clone(), present: present.join(", ") }
    })?;
    let mut so_far = name;
    for part in parts {
        let next = match (part.strip_prefix('[').and_then(|choice| choice.split_once('=')), value) {
            (Some((key, wanted)), Value::Array(list)) => list.iter().find(|element| match element.get(key) {
                Some(Value::String(text)) => text == wanted,
                Some(other) => serde_json::from_str::<Value>(wanted).is_ok_and(|wanted| wanted == *other),
                None => false,
            }),
            (None, Value::Array(list)) => part.parse::<usize>().ok().and_then(|index| list.get(index)),
            (None, Value::Object(entries)) => entries.get(&part),
            _ => None,
        };
        value = next.ok_or_else(|| {
            let is = match value {
                Value::Object(entries) => {
                    let keys: Vec<&str> = entries.keys().map(String::as_str).collect();
                    format!("has {}", keys.join(", "))
                }
                Value::Array(list) => format!("is a list of {}", list.len()),
                other => format!("is {other}"),
            };
            ExpressionError::NoPart { value: so_far.clone(), part: part.clone(), is }
        })?;
        so_far = format!("{so_far}.{part}");
    }
    Ok(value)
}

/// `a.b[c=d.e].0` is a, b, [c=d.e and 0.
fn parts(path: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut in_bracket = false;
    for c in path.chars() {
        match c {
            '[' => {
                in_bracket = true;
                parts.push("[".to_owned());
            }
            ']' => in_bracket = false,
            '.' if !in_bracket => parts.push(String::new()),
            _ => parts.last_mut().expect("there is one from the start").push(c),
        }
    }
    parts
}

fn number(value: &Value) -> Result<f64, ExpressionError> {
    value.as_f64().ok_or_else(|| not(value, "no number"))
}

fn truth(value: &Value) -> Result<bool, ExpressionError> {
    value.as_bool().ok_or_else(|| not(value, "neither true nor false"))
}

/// Whole numbers stay whole, so that they are printed so.
fn from_number(number: f64) -> Result<Value, ExpressionError> {
    if number.fract() == 0.0 && number.abs() < 9e15 {
        return Ok(Value::from(number as i64));
    }
    serde_json::Number::from_f64(number).map(Value::Number).ok_or_else(|| not(number, "no result"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn values() -> BTreeMap<String, Value> {
        let run = json!({"moved": {"demoted": 100, "promoted": 20}, "tiers": [{"name": "node0", "used": 5}, {"name": "slow-1", "used": 7}]});
        [("run".to_owned(), run), ("a".to_owned(), json!({"pages": 1120, "works": true, "share": 0.5}))].into()
    }

    #[test]
    fn expressions_come_to_what_they_say() {
        let check = |text: &str, expect: Value| assert_eq!(evaluate(text, &values()).unwrap().value, expect, "{text}");
        check("run.moved.demoted + run.moved.promoted == a.pages - 1000", json!(true));
        check("a.pages / 100 - 1.5 * 2", json!(8.2));
        check("2 + 3 * (4 - 1) - -1", json!(12));
        check("run.tiers.1.used > run.tiers.0.used and a.works", json!(true));
        check("run.tiers[name=slow-1].used", json!(7));
        check("length(run.tiers) == 2 and sum(run.tiers, used) == 12", json!(true));
        check("run.tiers.0.name == \"node0\" or false", json!(true));
        check("run.tiers.0.name != \"node1\"", json!(true));
        check("exists(run.nothing)", json!(false));
        check("a.share == 0.5 and a.works == true", json!(true));
        check("0.1 + 0.2 <= 0.31", json!(true));
    }

    #[test]
    fn what_is_missing_or_wrong_is_never_true() {
        let error = |text: &str| evaluate(text, &values()).unwrap_err();
        let check = |text: &str, says: &str| assert_eq!(error(text).to_string(), says, "{text}");
        check("run.moved.lost == 0", "`run.moved` has no `lost`: it has demoted, promoted");
        check("nothing > 1", "there is no value `nothing`: there are a, run");
        check("run.tiers.2.used > 1", "`run.tiers` has no `2`: it is a list of 2");
        check("a.pages / 0 > 1", "inf is no result");
        assert!(matches!(error("true or nothing"), ExpressionError::NoValue { name, .. } if name == "nothing"));
        assert!(matches!(error("run.tiers[name=x].used > 1"), ExpressionError::NoPart { .. }));
        for (text, kind) in [("run.moved > 1", "no number"), ("a.pages and true", "neither true nor false")] {
            assert!(matches!(error(text), ExpressionError::Kind { wanted, .. } if wanted == kind), "{text}");
        }
        for text in ["a.pages >", "a.pages 3", "(a.pages", "a ? b", "length(", "sum(a, "] {
            assert!(matches!(error(text), ExpressionError::Syntax(_)), "{text}");
        }
        assert_eq!(error("mean(run.tiers)"), ExpressionError::NoFunction("mean".to_owned()));
    }

    #[test]
    fn the_values_that_were_used_are_told() {
        let used = evaluate("run.moved.demoted > 3 * a.share", &values()).unwrap().used;
        assert_eq!(used, [("run.moved.demoted".to_owned(), json!(100)), ("a.share".to_owned(), json!(0.5))]);
    }
}
