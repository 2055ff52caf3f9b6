#include "compress/two_bit/two_bit_auto_checks.h"

#include <stdexcept>
#include <string>

#include "compress/payload/parameters.h"
#include "compress/payload/payloads.h"
#include "compress/two_bit/two_bit_sums_scalar.h"

namespace gradwire::compress::two_bit {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& problem) {
  throw DecodeError("2bit: " + what + " " + problem);
}

/// Checks form, unit count and, given the codes' size, the length. `what` is called only to word an error.
template <typename What>
Form check_head(Payload bytes, std::size_t elements, std::size_t code_bytes, const What& what) {
  // Before anything of the header is read.
  if (bytes.size() < body_offset(elements)) {
    fail(what(), "has " + std::to_string(bytes.size()) + " bytes, the header alone needs " +
                     std::to_string(body_offset(elements)));
  }
  const auto form = load<std::uint32_t>(bytes.data());
  if (form > static_cast<std::uint32_t>(Form::kCodes))
    fail(what(), "has form " + std::to_string(form) + ", expected 0 or 1");
  const auto units = load<std::uint32_t>(bytes.data() + 4);
  if (units != unit_count(elements)) {
    fail(what(), "has " + std::to_string(units) + " units, " + std::to_string(elements) + " elements have " +
                     std::to_string(unit_count(elements)));
  }
  const std::size_t body = static_cast<Form>(form) == Form::kDense ? elements * sizeof(float) : code_bytes;
  if (bytes.size() != body_offset(elements) + body) {
    fail(what(), "has " + std::to_string(bytes.size()) + " bytes, " + std::to_string(elements) +
                     " elements need " + std::to_string(body_offset(elements) + body));
  }
  return static_cast<Form>(form);
}

template <typename What>
void check_units(Payload payload, std::size_t elements, Form form, const What& what) {
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const auto unit = load_unit<PayloadUnit>(payload.data(), u);
    if (!finite_and_not_negative(unit.level) || !finite_and_not_negative(unit.sum_all) ||
        !finite_and_not_negative(unit.sum_selected)) {
      fail(what(), "has a negative or non-finite level or sum in unit " + std::to_string(u));
    }
    if (unit.selected_count > unit_elements(elements, u)) {
      fail(what(), "counts " + std::to_string(unit.selected_count) + " sent elements in unit " +
                       std::to_string(u) + " of " + std::to_string(unit_elements(elements, u)));
    }
    // One form of each payload: a level there would be ignored.
    if (form == Form::kDense && unit.level != 0)
      fail(what(), "is dense but has a level in unit " + std::to_string(u));
  }
}

template <typename What>
Form check_one(Payload payload, std::size_t elements, const What& what) {
  const Form form = check_head(payload, elements, packed_bytes(elements), what);
  check_units(payload, elements, form, what);
  return form;
}

void check_levels(std::span<const Payload> payloads, std::size_t i, std::size_t levels_from,
                  std::size_t elements) {
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const float expected = load_unit<PayloadUnit>(payloads[levels_from].data(), u).level;
    const float found = load_unit<PayloadUnit>(payloads[i].data(), u).level;
    if (found == expected) continue;
    fail(payload_name(i, payloads.size()),
         "has level " + parameter_text(static_cast<double>(found)) + " in unit " + std::to_string(u) +
             " where payload " + std::to_string(levels_from) + " has " +
             parameter_text(static_cast<double>(expected)) + "; all workers of a round share one level");
  }
}

}  // namespace

void check_payload(Payload payload, std::size_t elements) {
  check_one(payload, elements, [] { return std::string("the payload"); });
}

RoundForms check_round(std::span<const Payload> payloads, std::size_t elements) {
  expect_ways("2bit", payloads.size());
  RoundForms forms;
  bool any_codes = false;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const auto what = [&] { return payload_name(i, payloads.size()); };
    if (check_one(payloads[i], elements, what) == Form::kDense) {
      ++forms.dense_count;
    } else if (!any_codes) {
      any_codes = true;
      forms.levels_from = i;
    } else {
      // Codes are summed as integers and multiplied once, so one level must hold for all.
      check_levels(payloads, i, forms.levels_from, elements);
    }
  }
  return forms;
}

RoundForms check_heads(std::span<const Payload> heads, std::size_t elements) {
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const auto what = [&] { return payload_name(i, heads.size()); };
    // Asked first, because check_head() would only complain of the length that floats should have.
    if (heads[i].size() == body_offset(elements) && form_of(heads[i].data()) != Form::kCodes)
      fail(what(), "holds no codes, which a library could sum");
    check_head(heads[i], elements, 0, what);
    check_units(heads[i], elements, Form::kCodes, what);
    if (i > 0) check_levels(heads, i, 0, elements);
  }
  return {};
}

Form check_reply(Payload reply, std::size_t elements, std::size_t ways, ReplyKind kind) {
  expect_ways("2bit", ways);
  const std::size_t code_bytes =
      kind == ReplyKind::kExact ? plane_bytes(elements, ways) : packed_bytes(elements);
  const auto what = [] { return std::string("the reply"); };
  const Form form = check_head(reply, elements, code_bytes, what);
  if (form == Form::kCodes && kind == ReplyKind::kFp32)
    fail(what(), "holds codes where floats were asked for");
  for (std::size_t u = 0; u < unit_count(elements); ++u) {
    const auto unit = load_unit<ReplyUnit>(reply.data(), u);
    // So that a later version may give the reserved field a meaning.
    if (!finite_and_not_negative(unit.next_threshold) || !finite_and_not_negative(unit.next_level) ||
        !finite_and_not_negative(unit.level) || unit.reserved != 0) {
      fail(what(), "has a bad threshold or level in unit " + std::to_string(u));
    }
  }
  return form;
}

void expect_scales(std::size_t scales, std::size_t elements) {
  if (scales == 0 || scales == unit_count(elements)) return;
  throw std::invalid_argument("2bit: " + std::to_string(scales) + " scales were given, " +
                              std::to_string(elements) + " elements have " +
                              std::to_string(unit_count(elements)) + " units");
}

}  // namespace gradwire::compress::two_bit
