// A Collective that counts what it was asked to move.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "transport/collective.h"

namespace gradwire::kvstore {

/// Bytes that all ranks gave; may be shared by them.
struct MovedBytes {
  std::atomic<std::uint64_t> gathered{0};
  std::atomic<std::uint64_t> integers{0};
  std::atomic<std::uint64_t> floats{0};
};

class CountedCollective final : public transport::Collective {
 public:
  CountedCollective(std::unique_ptr<transport::Collective> inner, MovedBytes& moved)
      : inner_(std::move(inner)), moved_(moved) {}

  std::string_view name() const noexcept override { return inner_->name(); }
  std::uint32_t rank() const noexcept override { return inner_->rank(); }
  std::uint32_t size() const noexcept override { return inner_->size(); }
  void all_reduce(transport::Buffer values, transport::ElementType type, Done done) override {
    const bool integers = type >= transport::ElementType::kInt8;
    (integers ? moved_.integers : moved_.floats) += values.size_bytes();
    inner_->all_reduce(std::move(values), type, std::move(done));
  }
  void all_gather(transport::Buffer block, Done done) override {
    moved_.gathered += block.size_bytes();
    inner_->all_gather(std::move(block), std::move(done));
  }

 private:
  const std::unique_ptr<transport::Collective> inner_;
  MovedBytes& moved_;
};

}  // namespace gradwire::kvstore
