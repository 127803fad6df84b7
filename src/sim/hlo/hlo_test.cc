// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "sim/hlo/classify.h"
#include "sim/hlo/device_groups.h"
#include "sim/hlo/module.h"
#include "sim/hlo/shape.h"
#include "sim/hlo/text.h"

namespace anabranch::sim::hlo {
namespace {

constexpr std::string_view kSmall =
    R"(HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

FileNames
1 "a/b.py"

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%wrapped (p: bf16[8,4]) -> bf16[8,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  ROOT %a2a = bf16[8,4]{1,0} all-to-all(%p), replica_groups=[2,4]<=[8], dimensions={0}
}

ENTRY %main (a: f32[8], b: bf16[8,4]) -> (f32[8], bf16[8,4]) {
  %a = f32[8]{0} parameter(0), metadata={op_name="a, {b} \"quoted\""}
  %b = bf16[8,4]{1,0:T(8,128)S(5)} parameter(1)
  %table = s32[2,2]{1,0} constant({ { 1, 2 },
    { 3, 4 } })
  %a2a-start = ((bf16[8,4]{1,0}), bf16[8,4]{1,0}) async-start(%b), calls=%wrapped
  %r = f32[8]{0} all-reduce(f32[8]{0} %a), replica_groups={{0,1},{2,3}}, to_apply=%add, /*index=5*/channel_id=1
  %a2a-done = bf16[8,4]{1,0} async-done(%a2a-start), control-predecessors={%r}
  ROOT %out = (f32[8]{0}, bf16[8,4]{1,0}) tuple(%r, %a2a-done)
}
)";

std::string Error(std::string_view text) {
  HloModule module;
  return ParseHlo(text, &module).message();
}

TEST(HloParserTest, ReadsAModule) {
  HloModule module;
  const Status status = ParseHlo(kSmall, &module);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(module.name, "jit_f");
  EXPECT_TRUE(module.is_scheduled);
  ASSERT_EQ(module.computations.size(), 3u);
  const Computation& main = module.entry_computation();
  ASSERT_EQ(main.instructions.size(), 7u);
  EXPECT_EQ(main.root, 6);
  EXPECT_EQ(main.instructions[1].shape.memory_space, kHostMemorySpace);
  EXPECT_TRUE(IsOnHost(main.instructions[1].shape));
  EXPECT_EQ(main.instructions[4].operands, std::vector<int>{0});
  EXPECT_EQ(main.instructions[4].attribute("channel_id"), "1");
  EXPECT_TRUE(main.instructions[4].called.empty());  // to_apply of an all-reduce is no call
  EXPECT_EQ(main.instructions[5].control_predecessors, std::vector<int>{4});
  EXPECT_EQ(main.instructions[3].line, 22);  // the literal spans two lines
}

TEST(HloParserTest, ClassifiesAsynchronousPairs) {
  HloModule module;
  ASSERT_TRUE(ParseHlo(kSmall, &module).ok());
  const Computation& main = module.entry_computation();
  EXPECT_EQ(InnerOpcode(module, main.instructions[3]), "all-to-all");
  EXPECT_EQ(RoleOf(module, main, main.instructions[3]), NodeRole::kStart);
  EXPECT_EQ(RoleOf(module, main, main.instructions[5]), NodeRole::kDone);
  EXPECT_EQ(StartOf(main, main.instructions[5]), 3);
  EXPECT_EQ(RoleOf(module, main, main.instructions[4]), NodeRole::kPlain);
  EXPECT_EQ(RoleOf(module, main, main.instructions[6]), NodeRole::kNoOp);
  EXPECT_EQ(ResourceOf(module, main.instructions[3]), AsyncResource::kCollective);
}

TEST(HloParserTest, ReadsTripCountsAndFrontendAttributes) {
  Instruction i;
  i.attributes["backend_config"] = R"({"known_trip_count":{"n":"61"},"x":[]})";
  i.attributes["frontend_attributes"] =
      R"({latency_metadata="1500",_xla_stream_annotation="collective"})";
  EXPECT_EQ(TripCount(i), 61);
  EXPECT_EQ(FrontendAttribute(i, "latency_metadata"), "1500");
  EXPECT_TRUE(IsCustomCollective(i));
  EXPECT_EQ(TripCount(Instruction()), 1);
}

TEST(HloParserTest, NonsenseNamesItsLine) {
  EXPECT_EQ(Error(""), "hlo: no line begins with HloModule");
  EXPECT_EQ(Error("once upon a time\n{\n"), "hlo: no line begins with HloModule");
  EXPECT_EQ(Error("HloModule m\n"), "hlo: no computation is marked ENTRY");
  EXPECT_NE(Error("HloModule m\nENTRY e {\n  a = f32[2] parameter(0)\n").find("ends inside e"),
            std::string::npos);
  EXPECT_NE(Error("HloModule m\nENTRY e {\n  what is this\n}\n").find("line 3: no instruction"),
            std::string::npos);
  EXPECT_NE(Error("HloModule m\nENTRY e {\n  a = q99[2] parameter(0)\n}\n").find("'q99' is no"),
            std::string::npos);
  EXPECT_NE(Error("HloModule m\nENTRY e {\n  a = f32[-2] parameter(0)\n}\n").find("no count"),
            std::string::npos);
  EXPECT_NE(Error("HloModule m\nENTRY e {\n  a = f32[99999999999999999999] parameter(0)\n}\n")
                .find("no count"),
            std::string::npos);
  EXPECT_NE(Error("HloModule m\nENTRY e {\n  a = f32[2] negate(b)\n}\n").find("uses b"),
            std::string::npos);
  EXPECT_NE(Error("HloModule m\nENTRY e {\n  a = f32[2] call(), to_apply=z\n}\n").find("calls z"),
            std::string::npos);
  EXPECT_NE(Error("HloModule m\nENTRY e {\n  a = f32[2] call(), to_apply=e\n}\n").find("calls e"),
            std::string::npos);
  EXPECT_NE(Error("HloModule m\nENTRY e {\n  a = f32[2] parameter(0)\n  a = f32[2] negate(a)\n}\n")
                .find("line 4: a is defined twice"),
            std::string::npos);
}

TEST(HloParserTest, DeepNestingIsRefused) {
  const std::string text = "HloModule m\nENTRY e {\n  a = " + std::string(100000, '(');
  EXPECT_NE(Error(text + "\n}\n").find("nest deeper"), std::string::npos);
}

// Every prefix of a module is refused or read, never a crash.
TEST(HloParserTest, CutTextIsNoCrash) {
  for (size_t length = 0; length < kSmall.size(); ++length) {
    HloModule module;
    const Status status = ParseHlo(kSmall.substr(0, length), &module);
    EXPECT_EQ(status.ok(), length + 1 == kSmall.size()) << length;
  }
}

TEST(HloShapeTest, SizesAndTypes) {
  const auto bytes = [](std::string_view text) {
    Shape shape;
    EXPECT_TRUE(ReadShape(&text, &shape).ok());
    return ByteSize(shape);
  };
  EXPECT_EQ(bytes("bf16[512,1024]{1,0}"), 512 * 1024 * 2);
  EXPECT_EQ(bytes("f4e2m1fn[32]{0}"), 16);
  EXPECT_EQ(bytes("(f32[2]{0}, (s8[3]{0}, token[]))"), 11);
  EXPECT_EQ(bytes("f32[<=8,2]{1,0}"), 64);
  EXPECT_EQ(bytes("f32[0,5]{1,0}"), 0);
  EXPECT_EQ(bytes("pred[]"), 1);
}

DeviceGroups Groups(const std::string& text, int64_t devices, std::string* error = nullptr) {
  Instruction i;
  i.name = "c";
  i.attributes["replica_groups"] = text;
  DeviceGroups groups;
  const Status status = CollectiveGroups(i, devices, &groups);
  if (error != nullptr) *error = status.message();
  return groups;
}

TEST(DeviceGroupsTest, AllPrintedForms) {
  const DeviceGroups rows = {{0, 1, 2, 3}, {4, 5, 6, 7}};
  const DeviceGroups columns = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  EXPECT_EQ(Groups("{{0,1,2,3},{4,5,6,7}}", 8), rows);
  EXPECT_EQ(Groups("[2,4]<=[8]", 8), rows);
  EXPECT_EQ(Groups("mesh['d'=2,'e'=4] {'e'}", 8), rows);
  EXPECT_EQ(Groups("[4,2]<=[2,4]T(1,0)", 8), columns);
  EXPECT_EQ(Groups("mesh['d'=2,'e'=4] {'d'}", 8), columns);
  EXPECT_EQ(Groups("{}", 2), (DeviceGroups{{0, 1}}));
  EXPECT_EQ(Groups("", 2), (DeviceGroups{{0, 1}}));
}

TEST(DeviceGroupsTest, NonsenseIsRefused) {
  for (const char* text : {"{{0,1}", "{{0,x}}", "[2,4]", "[2,4]<=[9]", "[2,4]<=[2,4]T(0,0)",
                           "mesh['d'=2] {'q'}", "mesh['d'=0] {'d'}", "[2,4]<=[-8]", "{{0,9}}"}) {
    std::string error;
    Groups(text, 8, &error);
    EXPECT_NE(error, "") << text;
  }
}

TEST(DeviceGroupsTest, ExtentIsTheWorstGroups) {
  EXPECT_EQ(ExtentOf({{0, 1, 2, 3}}, 4).in_domain, 4);
  EXPECT_EQ(ExtentOf({{0, 4}, {1, 5}}, 4).in_domain, 1);
  EXPECT_EQ(ExtentOf({{0, 1}, {3, 4}}, 4).in_domain, 1);
  EXPECT_EQ(ExtentOf({{0}, {1}}, 4).size, 1);
}

}  // namespace
}  // namespace anabranch::sim::hlo
