//! From tokens to the typed tree.

use super::literal::{self, Literal};
use super::tokens::{self, Token, TokenKind};
use super::{
    Comparison, Condition, Field, Filter, FilterError, Inequality, Kind, MAX_BYTES, MAX_DEPTH, MAX_NODES, MAX_VALUES,
    Value,
};
use crate::json;

const FUNCTIONS: &str = "and, or, not, eq, neq, gt, gte, lt, lte, in, like, has, search";

pub fn parse(text: &str) -> Result<Filter, FilterError> {
    if text.len() > MAX_BYTES {
        return Err(tokens::error(
            text,
            0,
            format!(
                "a filter may have at most {MAX_BYTES} bytes, but this one has {}",
                text.len()
            ),
        ));
    }
    let mut parser = Parser {
        text,
        tokens: tokens::cut(text)?,
        next: 0,
        nodes: 0,
    };
    let filter = parser.expression(0)?;
    let rest = parser.take();
    match rest.kind {
        TokenKind::End => Ok(filter),
        kind => Err(parser.error(rest.at, format!("expected the end, found {}", kind.shown()))),
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    next: usize,
    nodes: usize,
}

impl Parser<'_> {
    fn error(&self, at: usize, message: impl Into<String>) -> FilterError {
        tokens::error(self.text, at, message)
    }

    fn peek(&self) -> &Token {
        // The last token is the end and is never consumed.
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += 1;
        token
    }

    fn sign(&mut self, sign: char) -> Result<(), FilterError> {
        let token = self.take();
        if token.kind == TokenKind::Sign(sign) {
            return Ok(());
        }
        Err(self.error(token.at, format!("expected `{sign}`, found {}", token.kind.shown())))
    }

    fn expression(&mut self, depth: usize) -> Result<Filter, FilterError> {
        let token = self.take();
        let TokenKind::Word(function) = &token.kind else {
            let message = format!("expected a function ({FUNCTIONS}), found {}", token.kind.shown());
            return Err(self.error(token.at, message));
        };
        if depth > MAX_DEPTH {
            return Err(self.error(token.at, format!("nested more than {MAX_DEPTH} deep")));
        }
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(self.error(token.at, format!("a filter may have at most {MAX_NODES} functions")));
        }
        let function = function.as_str();
        if !FUNCTIONS.split(", ").any(|known| known == function) {
            let message = format!("unknown function {}; expected one of {FUNCTIONS}", token.kind.shown());
            return Err(self.error(token.at, message));
        }
        self.sign('(')?;
        let filter = match function {
            "and" => Filter::And(self.expressions(depth)?),
            "or" => Filter::Or(self.expressions(depth)?),
            "not" => Filter::Not(Box::new(self.expression(depth + 1)?)),
            _ => self.test(function)?,
        };
        self.sign(')')?;
        Ok(filter)
    }

    fn expressions(&mut self, depth: usize) -> Result<Vec<Filter>, FilterError> {
        let mut parts = vec![self.expression(depth + 1)?];
        while self.peek().kind == TokenKind::Sign(',') {
            self.take();
            parts.push(self.expression(depth + 1)?);
        }
        Ok(parts)
    }

    fn test(&mut self, function: &str) -> Result<Filter, FilterError> {
        if function == "search" && matches!(self.peek().kind, TokenKind::Text(_)) {
            let check = Comparison::Search(self.needle()?);
            let field = Field::Everything;
            return Ok(Filter::Condition(Condition {
                field,
                comparison: check,
            }));
        }
        let (field, at) = self.field()?;
        self.sign(',')?;
        let fits = |what: bool| {
            if what {
                return Ok(());
            }
            let message = format!("`{function}` is not supported for `{}`{}", field.name(), hint(field));
            Err(self.error(at, message))
        };
        let check = match function {
            "eq" | "neq" => {
                fits(!matches!(field.kind(), Kind::Texts | Kind::Json))?;
                let value = self.value(field)?;
                if function == "eq" {
                    Comparison::Equal(value)
                } else {
                    Comparison::NotEqual(value)
                }
            }
            "gt" | "gte" | "lt" | "lte" => {
                fits(matches!(
                    field.kind(),
                    Kind::Time | Kind::Span | Kind::Count | Kind::Cost | Kind::Number | Kind::Scalar
                ))?;
                let order = match function {
                    "gt" => Inequality::Greater,
                    "gte" => Inequality::GreaterOrEqual,
                    "lt" => Inequality::Less,
                    _ => Inequality::LessOrEqual,
                };
                let at = self.peek().at;
                let value = self.value(field)?;
                let ordered = !matches!(value, Value::Null | Value::Bool(_) | Value::Text(_));
                if !ordered {
                    return Err(self.error(at, format!("`{function}` needs a value that can be ordered")));
                }
                Comparison::Inequality(order, value)
            }
            "in" => {
                fits(field.kind() != Kind::Json)?;
                Comparison::In(self.values(field)?)
            }
            "like" => {
                fits(matches!(field.kind(), Kind::Text | Kind::Scalar | Kind::Texts))?;
                Comparison::Like(self.text("a pattern")?)
            }
            "has" => {
                fits(matches!(field.kind(), Kind::Texts | Kind::Json))?;
                let at = self.peek().at;
                let text = self.text("a value")?;
                if field.kind() == Kind::Texts {
                    Comparison::HasText(text)
                } else {
                    let object = json::Value::parse(&text).ok();
                    let object = object
                        .filter(|value| value.as_object().is_some())
                        .map(json::Value::into_owned);
                    let message = "expected a string that holds a JSON object, like '{\"key\": \"value\"}'";
                    Comparison::HasJson(object.ok_or_else(|| self.error(at, message))?)
                }
            }
            _ => {
                fits(matches!(
                    field.kind(),
                    Kind::Text | Kind::Json | Kind::Texts | Kind::Scalar
                ))?;
                Comparison::Search(self.needle()?)
            }
        };
        Ok(Filter::Condition(Condition {
            field,
            comparison: check,
        }))
    }

    fn field(&mut self) -> Result<(Field, usize), FilterError> {
        let token = self.take();
        // Some clients quote field names.
        let name = match &token.kind {
            TokenKind::Word(name) | TokenKind::Text(name) => name,
            kind => return Err(self.error(token.at, format!("expected a field, found {}", kind.shown()))),
        };
        Field::named(name).map(|field| (field, token.at)).ok_or_else(|| {
            let known = Field::names().collect::<Vec<_>>().join(", ");
            let shown = TokenKind::Word(name.clone()).shown();
            self.error(token.at, format!("unknown field {shown}; expected one of {known}"))
        })
    }

    fn literal(&mut self) -> Result<(Literal, usize), FilterError> {
        let token = self.take();
        let literal = match token.kind {
            TokenKind::Text(text) => Literal::Text(text),
            TokenKind::Number(number) => Literal::Number(number),
            TokenKind::Word(word) => match word.as_str() {
                "true" | "True" => Literal::Bool(true),
                "false" | "False" => Literal::Bool(false),
                "null" | "None" => Literal::Null,
                _ => {
                    let message = format!("expected a value, found `{}`; put text in quotes", shorter(&word));
                    return Err(self.error(token.at, message));
                }
            },
            kind => return Err(self.error(token.at, format!("expected a value, found {}", kind.shown()))),
        };
        Ok((literal, token.at))
    }

    fn value(&mut self, field: Field) -> Result<Value, FilterError> {
        let (literal, at) = self.literal()?;
        literal::typed(field, literal).map_err(|message| self.error(at, message))
    }

    fn values(&mut self, field: Field) -> Result<Vec<Value>, FilterError> {
        let at = self.peek().at;
        self.sign('[')?;
        let mut values = Vec::new();
        if self.peek().kind == TokenKind::Sign(']') {
            self.take();
            return Ok(values);
        }
        loop {
            values.push(self.value(field)?);
            if values.len() > MAX_VALUES {
                return Err(self.error(at, format!("a list may have at most {MAX_VALUES} values")));
            }
            let token = self.take();
            match token.kind {
                TokenKind::Sign(',') => {}
                TokenKind::Sign(']') => return Ok(values),
                kind => return Err(self.error(token.at, format!("expected `,` or `]`, found {}", kind.shown()))),
            }
        }
    }

    fn text(&mut self, what: &str) -> Result<String, FilterError> {
        let token = self.take();
        match token.kind {
            TokenKind::Text(text) => Ok(text),
            kind => Err(self.error(token.at, format!("expected {what} in quotes, found {}", kind.shown()))),
        }
    }

    fn needle(&mut self) -> Result<String, FilterError> {
        let at = self.peek().at;
        let text = self.text("a text")?;
        if text.is_empty() {
            return Err(self.error(at, "the search text is empty"));
        }
        Ok(text)
    }
}

fn hint(field: Field) -> &'static str {
    match field.kind() {
        Kind::Texts => "; use has, in, like or search",
        Kind::Json => "; use has or search, or the keys and values in it (as input_key, input_value)",
        Kind::Text => "; use eq, neq, in, like or search",
        Kind::Scalar => "; use eq, neq, gt, gte, lt, lte, in, like or search",
        Kind::Id | Kind::Bool | Kind::First => "; use eq, neq or in",
        Kind::Time | Kind::Span | Kind::Count | Kind::Cost | Kind::Number => "; use eq, neq, gt, gte, lt, lte or in",
        Kind::Everything => "",
    }
}

fn shorter(text: &str) -> String {
    text.chars().take(40).collect()
}
