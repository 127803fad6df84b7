// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_TEXT_H_
#define ANABRANCH_SIM_HLO_TEXT_H_

#include <cstdint>
#include <string_view>
#include <vector>

namespace anabranch::sim::hlo {

// Small helpers over views of HLO text; none of them copies.

// Removes blanks and /*comments*/ from the front.
void SkipBlanks(std::string_view* text);
std::string_view Trim(std::string_view text);
// Removes `prefix` from the front; false if it is not there.
bool Consume(std::string_view* text, std::string_view prefix);
// Removes a name (letters, digits and _ . - : after an optional %) from the front, without the %.
std::string_view ReadName(std::string_view* text);
// Removes a decimal number with an optional sign; false if there is none or it exceeds 2^62.
bool ReadInteger(std::string_view* text, int64_t* value);
// Position after the bracket that closes the one at text[0]; npos if none does. Quotes are
// honoured.
size_t CloseBracket(std::string_view text);
// Splits at commas outside brackets and quotes; blanks round the parts are dropped.
std::vector<std::string_view> SplitTopLevel(std::string_view text);
// How many brackets are left open at the end of `text`, outside quotes.
int64_t OpenBrackets(std::string_view text);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_TEXT_H_
